"""The stages of a compiled program have plans of their own, and together they compute what the program does."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from hfdsl.plan.build import compile_stages
from hfdsl.protocols.queueing import Late


class B(hf.Dim): ...


class Rows(hf.Batch):
    value: f32[B]


class Sums(hf.Batch):
    total: hf.Metric[float, Literal["sum"]]


class Texts(hf.Batch):
    length: i64[B]


class Scored(hf.Batch):
    length: i64[B]
    value: f32[B]


class Pairs(hf.Batch):
    value: f32[B]
    other: f32[B]


class Weights(hf.Batch):
    total: hf.Metric[float, Literal["max"]]


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


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, balance="length")
    def score(self, texts: Texts) -> Rows:
        return Rows(value=texts.length.tensor.float())

    @register(Dispatch.DP_PROTO, balance="length")
    def rescore(self, texts: Texts) -> Rows:
        return self.score(texts)

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def write(self, rows: Rows) -> Texts:
        return Texts(length=rows.value.tensor.long())

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", during="write")
    def load(self, weights: Weights) -> None: ...


class Learner(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=1)
    def update(self, rows: Rows) -> Sums:
        return Sums(total=float(rows.value.tensor.sum()))

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=1)
    def learn(self, pairs: Pairs) -> Sums:
        return Sums(total=float(pairs.value.tensor.sum()))

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        return Weights(total=0.0)


@hf.dataflow
def balanced(rows: Rows, judge: Judge, learner: Learner, *, late: Late = "wait", in_flight: bool = False) -> Sums:
    texts = judge.write(rows)
    scored = hf.merge(Scored, texts, judge.score(texts))
    batch = hf.queue(scored, lag=1, late=late)
    sums = learner.update(judge.rescore(hf.merge(Texts, batch)))
    hf.sync(learner, judge, during="write" if in_flight else None)
    return sums


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def read(self, texts: Texts) -> Texts:
        return texts

    @register(Dispatch.DP_PROTO, balance="length")
    def rate(self, texts: Texts) -> Rows:
        return Rows(value=texts.length.tensor.float())


@hf.dataflow
def read_beside(rows: Rows, judge: Judge, reader: Reader, learner: Learner) -> Sums:
    texts = judge.write(rows)
    rated = reader.rate(reader.read(texts))
    scored = Pairs(value=judge.score(texts).value, other=rated.value)
    sums = learner.learn(hf.queue(scored, lag=1, late="wait"))
    hf.sync(learner, judge, during="write")
    return sums


def test_calls_that_are_not_balanced_wait_for_no_row_weights() -> None:
    """In a plan, too: balanced, ``judge.score`` would wait for the lengths that ``reader.read`` returns."""
    pools = {name: hf.ResourcePool([2], name=name) for name in ("judge", "reader", "learner")}
    places = hf.Deployment(
        judge=hf.place(Judge, pool=pools["judge"]),
        reader=hf.place(Reader, pool=pools["reader"]),
        learner=hf.place(Learner, pool=pools["learner"]),
    )
    plan, unbalanced = (
        read_beside.compile(places, dims={B: 4}, optimize=hf.Optimize(balance=balance)) for balance in (True, False)
    )
    assert {step.label: step.level for step in plan.steps} == {step.label: step.level for step in unbalanced.steps}
    assert plan.edges == unbalanced.edges


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, ["judge.score", "judge.rescore"]),
        ({"late": "drop"}, ["judge.score"]),
        ({"in_flight": True}, []),
    ],
    ids=["wait", "drop", "in flight"],
)
def test_calls_are_balanced_where_one_process_has_all_row_weights(options: Any, calls: list[str]) -> None:
    """A plan says so of the others, too."""
    places = hf.Deployment(
        judge=hf.place(Judge, pool=hf.ResourcePool([2], name="judges")),
        learner=hf.place(Learner, pool=hf.ResourcePool([1], name="learners")),
    )
    plan = balanced.given(**options).compile(places, dims={B: 4})
    assert [step.label for step in plan.steps if step.balance is not None] == calls
    assert [line.split()[1] for line in str(plan).splitlines() if "chunks by length" in line] == calls
    for stage, of_stage in plan.stage_plans:
        assert {step.label for step in of_stage.steps if step.balance is not None} == {
            step.label for step in of_stage.steps if step.label in calls
        }, stage.number
