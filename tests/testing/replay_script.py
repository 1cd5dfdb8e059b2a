"""What a user's script may look like: it defines a program, and at its end it records a step of it."""

from __future__ import annotations

import dataclasses
import sys

import torch

import hfdsl as hf


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 2.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Role(hf.Worker):
    def __init__(self, config: Config) -> None:
        self.config = config

    @hf.register(hf.Dispatch.DP_PROTO)
    def scaled(self, rows: Rows) -> Rows:
        return Rows(x=helper(rows.x.tensor) * self.config.scale)


@hf.function
def halved(rows: Rows) -> Rows:
    return Rows(x=rows.x.tensor / 2)


@hf.dataflow
def program(rows: Rows, role: Role) -> Rows:
    return halved(role.scaled(rows))


if __name__ == "__main__":
    deployment = hf.Deployment(role=hf.place(Role, Config(), pool=hf.ResourcePool([2], use_gpu=False)))
    with program.compile(deployment, {B: 4}).launch() as running, running.record(sys.argv[1]):
        running.step(Rows(x=torch.arange(4.0)))
