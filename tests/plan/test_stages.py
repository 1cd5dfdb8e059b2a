"""The stages of a compiled program have plans of their own, and together they compute what the program does."""

from __future__ import annotations

from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.plan.build import compile_stages


class B(hf.Dim): ...


class Rows(hf.Batch):
    value: f32[B]


class Sums(hf.Batch):
    total: hf.Metric[float, Literal["sum"]]


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, rows: Rows) -> Rows:
        return Rows(value=rows.value.tensor * 2)


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, rows: Rows) -> Sums:
        return Sums(total=float(rows.value.tensor.sum()))


@hf.dataflow
def split(rows: Rows, engine: Engine, trainer: Trainer) -> Sums:
    batch = hf.queue(engine.generate(hf.repeat(rows, 2)), group=2, lag=1, late="wait")
    return trainer.update(batch)


@hf.dataflow
def whole(rows: Rows, engine: Engine, trainer: Trainer) -> Sums:
    return trainer.update(hf.queue(engine.generate(hf.repeat(rows, 2))))


DEPLOYMENT = hf.Deployment(
    engine=hf.place(Engine, pool=hf.ResourcePool([2], name="engines")),
    trainer=hf.place(Trainer, pool=hf.ResourcePool([4], name="trainers")),
)
ROWS = Rows(value=torch.arange(4.0))


def test_stages_run_one_after_another_give_what_a_synchronous_edge_gives() -> None:
    with whole.compile(DEPLOYMENT, dims={B: 4}).launch("local") as running:
        expected = running.step(ROWS)
    (first, generating), (second, training) = compile_stages(split.compile(DEPLOYMENT, dims={B: 4}))
    assert [*first.feeds] == [*second.reads] == ["queue"]
    with generating.launch("local") as running:
        first_result = running.step(ROWS)
    with training.launch("local") as running:
        result = running.step(first_result["queue"])
    assert result["results"][0].total.value == expected.total.value == 24.0
