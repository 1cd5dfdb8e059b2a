"""A program without tensors: what remains is Ray and hfdsl."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
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


class Loading(Heavy):
    """The same, whose constructor waits as for a checkpoint."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        time.sleep(seconds)


@hf.dataflow
def loading(actor: Loading, critic: Loading, reference: Loading, engine: Loading) -> hf.PerRank[int]:
    """A call of each of four roles."""
    actor.count()
    critic.count()
    reference.count()
    return engine.count()


@hf.dataflow
def loading_alone(actor: Loading) -> hf.PerRank[int]:
    return actor.count()


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


def loading_deployment(seconds: float, names: Sequence[str]) -> hf.Deployment:
    """Roles on pools of their own."""
    return hf.Deployment(
        **{name: hf.place(Loading, seconds, pool=hf.ResourcePool([1], use_gpu=False, name=name)) for name in names}
    )


class Bare:
    """An actor of Ray's that imports the given modules."""

    def __init__(self, modules: list[str]) -> None:
        from importlib import import_module

        for name in modules:
            import_module(name)

    def count(self) -> int:
        return 1
