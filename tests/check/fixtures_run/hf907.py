"""A mean over an empty mask."""

from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.training.metrics import values_of


class B(hf.Dim): ...


class Rows(hf.Batch):
    loss: hf.f32[B]
    mask: hf.bool_[B]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, rows: Rows) -> Metrics:
        mask = rows.mask.tensor
        # good: return Metrics(loss=float((rows.loss.tensor * mask).sum() / mask.sum().clamp(min=1)))
        return Metrics(loss=float((rows.loss.tensor * mask).sum() / mask.sum()))  # bad


@hf.dataflow
def program(rows: Rows, actor: Actor) -> Metrics:
    return actor.update(rows)


plan = program.compile(hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([2], name="pool"))))
with plan.launch("local") as running:
    result = running.step(Rows(loss=torch.ones(4), mask=torch.zeros(4, dtype=torch.bool)))
print(values_of(plan, result, running.steps))  # <-
