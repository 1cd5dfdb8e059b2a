# mypy: disable-error-code="empty-body"
"""Splits, groups, mini-batches and a requirement that one batch size upsets together."""

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Rollout(hf.Batch):
    ids: hf.i64[B]


class Actor(hf.Worker):
    def __init__(self, micro_batch: int) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro_batch == 0")
    def update(self, rollout: Rollout) -> None: ...


@hf.function(rows=hf.Whole)
def paired(prompts: Prompts) -> Prompts: ...


@hf.function(rows=hf.Grouped(8))
def centre(rollout: Rollout) -> Rollout: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> None:
    rollout = centre(actor.generate(hf.repeat(paired(prompts), 4)))
    for _ in range(2):
        for part in hf.minibatches(rollout, 4):
            actor.update(part)


deployment = hf.Deployment(
    actor=hf.place(Actor, micro_batch=24, pool=hf.ResourcePool([8, 8], name="train"), mesh=hf.Mesh(dp=8, tp=2)),
)


def report() -> hf.Report:
    return program.check(deployment, dims={B: 50})
