"""Pad rows: what a warning says of them is what happens."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.rules.rows.padding import pad_rows_count_for_nothing
from hfdsl.check.run import build_context


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Sums(hf.Batch):
    total: hf.Metric[float, Literal["sum"]]
    largest: hf.Metric[float, Literal["max"]]


class Marked(Rows):
    seen: hf.Metric[int, Literal["sum"]]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def sums(self, rows: Rows) -> Sums:
        return Sums(total=float(rows.x.tensor.sum()), largest=float(rows.x.tensor.max()))

    @register(Dispatch.DP_PROTO, pad="cycle", rows=hf.Grouped(2))
    def mark(self, rows: Rows) -> Marked:
        return Marked(x=rows.x.tensor * 2, seen=len(rows))

    @register(Dispatch.DP_PROTO, pad="cycle")
    def double(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor * 2)

    @register(Dispatch.DP_PROTO, pad="cycle")
    def learn(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    def column(self, rows: Rows) -> hf.f32[B]:
        return rows.x

    @register(Dispatch.DP_PROTO, pad="cycle")
    @hf.requires("B % 4 == 0")
    def fours(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    def wait(self, seconds: float) -> None: ...


@hf.dataflow
def summing(rows: Rows, judge: Judge) -> Sums:
    return judge.sums(rows)


@hf.dataflow
def marking(rows: Rows, judge: Judge) -> Marked:
    return judge.mark(rows)


@hf.dataflow
def doubling(rows: Rows, judge: Judge) -> Rows:
    return judge.double(rows)


@hf.dataflow
def learning(rows: Rows, judge: Judge) -> None:
    judge.learn(rows)


deployment = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([2], use_gpu=False)))


@pytest.mark.parametrize("count", [3, 4])
def test_a_metric_counts_the_pad_rows_of_which_is_warned(count: int) -> None:
    report = summing.check(deployment, dims={B: count})
    with summing.compile(deployment, dims={B: count}).launch() as running:
        sums = running.step(Rows(x=torch.ones(count)))
    assert (sums.total.value != count) is (report.codes == ("HF317",))
    assert sums.largest.value == 1.0
    if report.findings:
        assert report.findings[0].message.endswith(
            "gets 1 pad row in addition to its 3, and counts them in its metrics total"
        )


def test_rows_alone_lose_their_pad_rows() -> None:
    assert doubling.check(deployment, dims={B: 3}).findings == ()
    with doubling.compile(deployment, dims={B: 3}).launch() as running:
        assert running.step(Rows(x=torch.ones(3))).x.tensor.tolist() == [2.0, 2.0, 2.0]


def test_whole_groups_are_padded() -> None:
    [finding] = marking.check(deployment, dims={B: 6}).findings
    assert finding.message == "'judge.mark' gets 2 pad rows in addition to its 6, and counts them in its metrics seen"
    assert finding.help == ("set B to 4 or 8: no row is padded then",)
    with marking.compile(deployment, dims={B: 6}).launch() as running:
        marked = running.step(Rows(x=torch.arange(6.0)))
    assert (marked.seen.value, len(marked)) == (8, 6)


def test_a_body_that_gives_nothing_counts_them_in_what_it_does() -> None:
    assert learning.check(deployment, dims={B: 5}).codes == ("HF317",)
    assert learning.check(deployment, dims={B: (6, 4)}).codes == ()
    assert "HF317" not in learning.check(deployment).codes


def test_as_many_rows_are_padded_as_the_last_chunks_lack() -> None:
    four = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([4], use_gpu=False)))
    [finding] = learning.check(four, dims={B: 9}).findings
    assert finding.message.startswith(
        "'judge.learn' gets 3 pad rows in addition to its 9, and counts them in what it does"
    )
    assert finding.primary.text == "9 % 4 = 1"


def test_where_no_repair_is_tried_sizes_are_a_note() -> None:
    [finding] = pad_rows_count_for_nothing(build_context(learning.body, deployment, {B: 5}))
    assert (finding.help, finding.notes) == ((), ("with B set to 4 or 6 no row is padded",))


def test_rows_that_hang_on_no_size_are_padded_without_advice() -> None:
    @hf.dataflow
    def program(rows: Rows, judge: Judge) -> None:
        judge.learn(hf.take(rows, 3))

    [finding] = program.check(deployment, dims={B: 4}).findings
    assert (finding.code, finding.help, finding.notes) == ("HF317", (), ())


def test_a_column_loses_its_pad_rows() -> None:
    @hf.dataflow
    def program(rows: Rows, judge: Judge) -> hf.f32[B]:
        return judge.column(rows)

    assert program.check(deployment, dims={B: 3}).findings == ()


def test_rows_that_are_wrong_anyway_have_one_finding() -> None:
    @hf.dataflow
    def program(rows: Rows, judge: Judge) -> None:
        judge.fours(rows)

    assert program.check(deployment, dims={B: 5}).codes == ("HF322",)


def test_a_call_without_rows_has_none_to_pad() -> None:
    @hf.dataflow
    def program(rows: Rows, judge: Judge) -> Rows:
        judge.wait(0.5)
        return judge.double(rows)

    assert "HF317" not in program.check(deployment, dims={B: 3}).codes


def test_filtered_rows_are_padded_in_some_steps() -> None:
    """Of four rows three are kept, and the sum has a copy of the last."""

    @hf.function
    def positive(rows: Rows) -> hf.bool_[B]:
        return hf.bool_(rows.x.tensor > 0)

    @hf.dataflow
    def program(rows: Rows, judge: Judge) -> Sums:
        return judge.sums(hf.filter(rows, positive(rows)))

    [finding] = program.check(deployment, dims={B: 4}).findings
    assert finding.code == "HF317"
    assert finding.message.startswith("'judge.sums' gets pad rows whenever 2 does not divide what a filter keeps, and")
    with program.compile(deployment, dims={B: 4}).launch() as running:
        assert running.step(Rows(x=torch.tensor([1.0, 1.0, 1.0, 0.0]))).total.value == 4.0


def test_whole_pairs_that_a_filter_keeps_are_never_padded_for_two_ranks() -> None:
    @hf.function(rows=hf.Grouped(2))
    def rising(rows: Rows) -> hf.bool_[B]:
        first, second = rows.x.tensor.view(-1, 2).unbind(1)
        return hf.bool_((first < second).repeat_interleave(2))

    @hf.dataflow
    def program(rows: Rows, judge: Judge) -> Sums:
        return judge.sums(hf.filter(rows, rising(rows), group=2))

    assert program.check(deployment, dims={B: 4}).codes == ()
