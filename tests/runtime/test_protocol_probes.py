"""Numbered rows through custom protocols at launch: what moves or repeats rows is refused, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import bool_, f32, i64, register
from hfdsl.errors import ProtocolError
from hfdsl.graph.dataflow import Dataflow


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    ids: i64[B, R]
    mask: bool_[B, R]
    name: hf.Obj[str, B]


class Scores(hf.Batch):
    score: f32[B]
    index: i64[B]


class Total(hf.Batch):
    sum: hf.Metric[float, Literal["sum"]]


def picked(rows: Rows, places: Any) -> Rows:
    places = torch.as_tensor(places)
    names = [rows.name.objects[place] for place in places.tolist()]
    return Rows(ids=rows.ids.tensor[places], mask=rows.mask.tensor[places], name=names)


def in_runs(group: Any, rows: Rows) -> Any:
    chunks = torch.arange(len(rows)).chunk(group.world_size)
    return ([picked(rows, part) for part in chunks],), {}


def in_turns(group: Any, rows: Rows) -> Any:
    return ([picked(rows, torch.arange(rank, len(rows), group.world_size)) for rank in range(group.world_size)],), {}


def by_length(group: Any, rows: Rows) -> Any:
    """The longest rows first, so that ranks have as many tokens: who collects has to put them back."""
    order = rows.mask.tensor.sum(1).argsort(descending=True, stable=True)
    return in_turns(group, picked(rows, order))


def replicated(group: Any, rows: Rows) -> Any:
    return ([rows] * group.world_size,), {}


def joined(group: Any, outputs: Sequence[Scores]) -> Scores:
    return Scores(
        score=torch.cat([output.score.tensor for output in outputs]),
        index=torch.cat([output.index.tensor for output in outputs]),
    )


def taken_in_turns(group: Any, outputs: Sequence[Scores]) -> Scores:
    score = torch.stack([output.score.tensor for output in outputs], 1).flatten()
    return Scores(score=score, index=torch.stack([output.index.tensor for output in outputs], 1).flatten())


def sorted_back(group: Any, outputs: Sequence[Scores]) -> Scores:
    scores = joined(group, outputs)
    order = scores.index.tensor.argsort()
    return Scores(score=scores.score.tensor[order], index=scores.index.tensor[order])


def backward(group: Any, outputs: Sequence[Scores]) -> Scores:
    return joined(group, outputs[::-1])


def of_rank_zero(group: Any, outputs: Sequence[Scores]) -> Scores:
    return joined(group, [outputs[0]] * len(outputs))


def first(group: Any, outputs: Sequence[Any]) -> Any:
    return outputs[0]


def centered(group: Any, outputs: Sequence[Scores]) -> Scores:
    """Scores less their mean: rows that are computed have no number."""
    scores = joined(group, outputs)
    return Scores(score=scores.score.tensor - scores.score.tensor.mean(), index=scores.index.tensor)


def refusing(group: Any, rows: Rows) -> Any:
    """It takes the prompts of one data set alone."""
    if not all(name.startswith("task") for name in rows.name.objects):
        raise ValueError("no tasks")
    return in_runs(group, rows)


class Exchangeable:
    """A function of the protocol of the roles here; each test puts another one in."""

    now: Any = None

    def __call__(self, *args: Any) -> Any:
        return self.now(*args)

    @property
    def __name__(self) -> str:
        name: str = self.now.__name__
        return name


DISPATCH, COLLECT = Exchangeable(), Exchangeable()
PROBED = {"dispatch_fn": DISPATCH, "collect_fn": COLLECT}


class Judge(hf.Worker):
    @register(PROBED)
    def score(self, rows: Rows) -> Scores:
        numbers = rows.ids.tensor[:, 0]
        return Scores(score=numbers.float(), index=numbers)

    @register(PROBED, rows=hf.Whole)
    def rank_scores(self, rows: Rows) -> Scores:
        return self.score(rows)

    @register(PROBED, rows=hf.Grouped(3))
    def group_scores(self, rows: Rows) -> Scores:
        return self.score(rows)

    @register(PROBED)
    def total(self, rows: Rows) -> Total:
        return Total(sum=float(len(rows)))


@hf.dataflow
def scored(rows: Rows, judge: Judge) -> Scores:
    return judge.score(rows)


@hf.dataflow
def ranked(rows: Rows, judge: Judge) -> Scores:
    return judge.rank_scores(rows)


@hf.dataflow
def grouped(rows: Rows, judge: Judge) -> Scores:
    return judge.group_scores(rows)


@hf.dataflow
def summed(rows: Rows, judge: Judge) -> Total:
    return judge.total(rows)


def launched(flow: Dataflow[..., Any], dispatch_fn: Any, collect_fn: Any, ranks: int = 2) -> Any:
    DISPATCH.now, COLLECT.now = dispatch_fn, collect_fn
    places = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([ranks], use_gpu=False)))
    return flow.compile(places).launch()


MOVED = "returns rows in another order: of {} numbered rows, row {} of the result is row {}, which rank {} returned"
LOST = (
    "loses rows: of {} numbered rows, row {} of the result is row {}, which rank {} returned, and row {} is not in it"
)


@pytest.mark.parametrize(
    ("dispatch_fn", "collect_fn", "ranks", "wrong"),
    [
        (in_runs, taken_in_turns, 2, MOVED.format(4, 1, 2, 1)),
        (in_turns, joined, 2, MOVED.format(4, 1, 2, 0)),
        (in_runs, backward, 4, MOVED.format(8, 0, 6, 3)),
        (by_length, joined, 2, MOVED.format(4, 0, 3, 0)),
        (in_runs, of_rank_zero, 2, LOST.format(4, 2, 0, 0, 2)),
    ],
)
def test_rows_that_move_or_repeat_are_refused_at_launch(
    dispatch_fn: Any, collect_fn: Any, ranks: int, wrong: str
) -> None:
    named = f"{dispatch_fn.__name__} and {collect_fn.__name__},"
    with pytest.raises(ProtocolError) as error:
        launched(scored, dispatch_fn, collect_fn, ranks)
    text = f"HF427: the protocol of 'judge.score', {named} {wrong}; declare rows=hf.Whole if that is meant"
    assert str(error.value).rpartition(" (")[0] == text


@pytest.mark.parametrize(
    ("flow", "dispatch_fn", "collect_fn"),
    [
        (scored, in_runs, joined),
        (scored, in_turns, taken_in_turns),
        (scored, by_length, sorted_back),
        (scored, replicated, first),
        (scored, in_runs, centered),
        (scored, refusing, joined),
        (ranked, in_turns, joined),
        (grouped, in_runs, joined),
        (summed, in_turns, first),
    ],
)
def test_rows_that_come_back_or_cannot_be_followed_are_not(
    flow: Dataflow[..., Any], dispatch_fn: Any, collect_fn: Any
) -> None:
    """Computed values have no number, a function may refuse such rows, and rows=hf.Whole says that rows differ."""
    ids = torch.arange(12)[:, None].repeat(1, 2)
    rows = Rows(ids=ids, mask=torch.ones(12, 2, dtype=torch.bool), name=[f"task {i}" for i in range(12)])
    with launched(flow, dispatch_fn, collect_fn) as running:
        got = running.step(rows)
    if flow in (scored, grouped) and collect_fn is not centered:
        assert got.score.tensor.tolist() == list(range(12))
