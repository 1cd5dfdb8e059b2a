"""A program without tensors: what remains is Ray and hfdsl."""

from __future__ import annotations

import sys
from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, register


class Count(hf.Batch):
    ranks: hf.Metric[int, Literal["sum"]]


class Light(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def count(self) -> int:
        return 1

    @register(Dispatch.ONE_TO_ALL)
    def modules(self) -> list[str]:
        """What is imported in this process."""
        return sorted(sys.modules)


class Heavy(Light):
    """The same in a process that imports torch, as a role's does."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)


@hf.dataflow
def light(role: Light) -> hf.PerRank[int]:
    return role.count()


@hf.dataflow
def heavy(role: Heavy) -> hf.PerRank[int]:
    return role.count()


@hf.dataflow
def imported(role: Light) -> hf.PerRank[list[str]]:
    return role.modules()


@hf.dataflow
def imported_heavy(role: Heavy) -> hf.PerRank[list[str]]:
    return role.modules()


def deployment(role: type[Light], ranks: int) -> hf.Deployment:
    """One role on one pool."""
    return hf.Deployment(role=hf.place(role, pool=hf.ResourcePool([ranks], use_gpu=False, name="light")))


class Bare:
    """An actor of Ray's that imports the given modules."""

    def __init__(self, modules: list[str]) -> None:
        from importlib import import_module

        for name in modules:
            import_module(name)

    def count(self) -> int:
        return 1
