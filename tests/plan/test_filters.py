"""Filters, ``take`` and ``fill``: the same rows eagerly and in a plan, and an error where rows are missing."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from tests.nightly import examples


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.i64[B]
    name: hf.Obj[str, B]


class Count(hf.Batch):
    rows: hf.Metric[int, Literal["sum"]]


class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def keep(self, rows: Rows) -> hf.bool_[B]:
        return hf.bool_(rows.x.tensor > 0)

    @hf.register(hf.Dispatch.DP_PROTO, pad="repeat_last")
    def tenfold(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor * 10, name=[f"{name}!" for name in rows.name.objects])

    @hf.register(hf.Dispatch.THREE_D_PP_ONLY)
    def count(self, rows: Rows) -> Count:
        return Count(rows=len(rows))


@hf.dataflow
def kept(rows: Rows, judge: Judge) -> tuple[Rows, hf.PerStage[Count]]:
    some = hf.filter(rows, judge.keep(rows))
    larger = judge.tenfold(some)
    return larger, judge.count(larger)


@hf.dataflow
def twice(rows: Rows, judge: Judge) -> Rows:
    four = hf.fill(hf.filter(rows, judge.keep(rows), group=2), 4)
    return hf.fill(hf.filter(four, judge.keep(judge.tenfold(four)), group=2), 4)


@hf.dataflow
def pairs(rows: Rows, judge: Judge) -> Rows:
    return hf.filter(rows, judge.keep(rows), group=2)


@hf.dataflow
def first(rows: Rows, judge: Judge) -> Rows:
    return hf.take(hf.filter(rows, judge.keep(rows)), 3)


@hf.dataflow
def filled(rows: Rows, judge: Judge) -> Rows:
    return hf.fill(hf.filter(rows, judge.keep(rows)), 3)


def batch(*x: int) -> Rows:
    return Rows(x=torch.tensor(x), name=[str(i) for i in x])


def plan(flow: Any) -> Any:
    pool = hf.ResourcePool([2], use_gpu=False)
    return flow.compile(hf.Deployment(judge=hf.place(Judge, pool=pool)))


@settings(max_examples=examples(40))
@given(st.lists(st.integers(-2, 2), min_size=1, max_size=6))
def test_an_eager_run_and_a_plan_keep_the_same_rows(half: list[int]) -> None:
    x = [*half, *half]
    meant = [i for i in x if i > 0]
    eager, _ = kept(batch(*x), Judge())
    with plan(kept).launch() as running:
        for larger, count in (running.step(batch(*x)), running.step(batch(*x))):
            assert larger.x.tensor.tolist() == eager.x.tensor.tolist() == [10 * i for i in meant]
            assert larger.name.objects == eager.name.objects == [f"{i}!" for i in meant]
            assert larger.x.tensor.dtype == torch.int64
            assert [c.rows.value for c in count] == [len(meant)]


def test_a_filter_keeps_or_drops_whole_groups() -> None:
    with plan(pairs).launch() as running:
        assert running.step(batch(1, 2, 0, 0)).x.tensor.tolist() == [1, 2]
        with pytest.raises(hf.SizeError, match=r"HF313.*'filter' in line \d+ .*rows 0 to 1 are one group, of which 1"):
            running.step(batch(1, 0, 0, 0))
    with pytest.raises(hf.SizeError, match="HF313"):
        pairs(batch(1, 0, 0, 0), Judge())


def test_rows_that_are_missing_are_reported() -> None:
    for flow, code in ((first, r"HF321.*take.* of 3 rows: there are only 2"), (filled, r"HF321.*no rows are left")):
        x = batch(*((1, 1, 0, 0) if flow is first else (0, 0)))
        with plan(flow).launch() as running, pytest.raises(hf.SizeError, match=code):
            running.step(x)
        with pytest.raises(hf.SizeError, match=code):
            flow(x, Judge())


def test_a_filter_takes_truth_values_of_its_rows() -> None:
    wrong: list[Any] = [hf.bool_(torch.tensor([True])), hf.bool_(torch.tensor([1, 0, 1, 0])), [True] * 4]
    for keep in wrong:
        with pytest.raises(hf.WiringError, match="HF206"):
            hf.filter(batch(1, 2, 3, 4), keep)


def test_the_wrong_column_is_a_finding() -> None:
    @hf.dataflow
    def flow(rows: Rows, judge: Judge) -> Rows:
        return hf.filter(rows, judge.keep(hf.repeat(rows, 2)))

    @hf.dataflow
    def other(rows: Rows, judge: Judge) -> Rows:
        return hf.filter(rows, rows.x)  # type: ignore[arg-type]

    assert flow.check().codes == ("HF212",)
    assert other.check().codes == ("HF221",)


def test_a_filter_after_a_filter_in_a_plan() -> None:
    x = batch(3, 1, 0, 0, 2, 5, 0, 0)
    with plan(twice).launch() as running:
        assert running.step(x).x.tensor.tolist() == twice(x, Judge()).x.tensor.tolist() == [3, 1, 2, 5]
