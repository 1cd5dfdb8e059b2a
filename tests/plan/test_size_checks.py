"""What a check could not decide is judged again with the sizes of a step, under the code of the warning."""

from __future__ import annotations

from inspect import signature
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, register


class B(hf.Dim): ...


class N(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B, P]


class Others(hf.Batch):
    ids: hf.i64[N]


class Both(hf.Batch):
    left: hf.i64[B, P]
    right: hf.i64[B]


class Odd(hf.Batch):
    ids: hf.i64[B, Add[P, R]]
    mask: hf.i64[B, P]


class Actor(hf.Worker):
    def __init__(self, micro: int = 2) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % micro == 0", "P <= 4", "B < 100 or B > 200")
    def score(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.DP_PROTO)
    @hf.requires("R >= 2")
    def read(self, odd: Odd) -> Odd:
        return odd


@hf.dataflow
def scoring(rows: Rows, actor: Actor) -> Rows:
    return actor.score(rows)


@hf.dataflow
def side_by_side(rows: Rows, others: Others) -> Both:
    ids: Any = others.ids  # a type checker compares the names of dims, and refuses it
    return Both(left=rows.ids, right=ids)


@hf.dataflow
def reading(odd: Odd, actor: Actor) -> Odd:
    return actor.read(odd)


deployment = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([1], use_gpu=False)))


def rows(count: int, tokens: int = 3) -> Rows:
    return Rows(ids=torch.zeros(count, tokens, dtype=torch.int64))


def test_a_requirement_that_was_open_is_held_by_the_run() -> None:
    assert set(scoring.check(deployment).codes) == {"HF319"}
    with scoring.compile(deployment).launch() as running:
        assert len(running.step(rows(4))) == 4
        with pytest.raises(
            hf.SizeError,
            match=r"^HF319: not decided before launch, and refused with B = 5, P = 3 \(HF322, line \d+\): "
            r"'actor.score' requires B % micro == 0, but 5 % 2 = 1; with B set to 4 or 6 this holds",
        ):
            running.step(rows(5))
        with pytest.raises(hf.SizeError, match=r"HF319: .*'actor.score' requires P <= 4, but P = 7; with P set to 4"):
            running.step(rows(4, 7))
        assert len(running.step(rows(6))) == 6  # a size that is refused breaks nothing


def test_a_comment_hides_a_warning_and_no_guard() -> None:
    @hf.dataflow
    def quiet(rows: Rows, actor: Actor) -> Rows:
        return actor.score(rows)  # hf: ignore[HF319]

    plan = quiet.compile(deployment)
    assert plan.report.findings == ()
    with plan.launch() as running, pytest.raises(hf.SizeError, match=r"HF319: .*'actor.score' requires B % micro == 0"):
        running.step(rows(5))


def test_rows_that_may_differ_are_a_warning_and_are_held_by_the_run() -> None:
    [finding] = side_by_side.check().findings
    assert finding.code == "HF319"
    assert finding.message.endswith("whether column 'right' of 'Both' gets as many rows as it needs: it gets N, "
                                    "'left' beside it has B")  # fmt: skip
    assert side_by_side.check(dims={B: 4, N: 4}).findings == ()
    assert side_by_side.check(dims={B: 4, N: 5}).codes == ("HF212",)
    with side_by_side.compile(hf.Deployment()).launch() as running:
        both = running.step(rows(4), Others(ids=torch.arange(4)))
        assert both.right.tensor.tolist() == [0, 1, 2, 3]
        with pytest.raises(
            hf.SizeError, match=r"HF319: .*HF212, .* column 'right' of 'Both' gets N rows where .* \(3 and 4 with"
        ):
            running.step(rows(4), Others(ids=torch.arange(3)))


def test_a_dim_that_only_a_sum_tells_is_known_to_the_run() -> None:
    def odd(tokens: int) -> Odd:
        return Odd(ids=torch.zeros(2, tokens, dtype=torch.int64), mask=torch.zeros(2, 3, dtype=torch.int64))

    with reading.compile(deployment).launch() as running:
        assert len(running.step(odd(5))) == 2
        with pytest.raises(
            hf.SizeError, match=r"HF319: .* with B = 2, P = 3, R = 1 .*'actor.read' requires R >= 2, but R = 1"
        ):
            running.step(odd(4))


class Table(hf.Batch):
    ids: hf.i64[Mul[B, N]]


class Made(hf.Batch):
    ids: hf.i64[R]


@hf.function(rows=hf.Whole)
def make(table: Table) -> Made:
    return Made(ids=table.ids.tensor[:3])


@hf.dataflow
def making(table: Table) -> Made:
    return make(table)


def test_rows_that_nothing_tells_are_an_error_and_given_they_run() -> None:
    assert making.check().findings == ()  # nothing is to be launched
    report = making.check(hf.Deployment())
    assert [finding.message.rpartition("the size of ")[2].split()[0] for finding in report] == ["B", "N", "R"]
    with making.compile(hf.Deployment(), dims={B: 2, R: 3}).launch() as running:
        assert len(running.step(Table(ids=torch.arange(8)))) == 3


class Marked(hf.Batch):
    ids: hf.i64[B]
    keep: hf.bool_[B]


class Learner(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B <= 2")
    def update(self, marked: Marked) -> int:
        return len(marked)


@hf.dataflow
def learning(marked: Marked, learner: Learner) -> hf.PerRank[int]:
    return learner.update(hf.filter(marked, marked.keep))


def test_the_number_of_filtered_rows_is_checked_in_the_run() -> None:
    placed = hf.Deployment(learner=hf.place(Learner, pool=hf.ResourcePool([1], use_gpu=False)))
    assert learning.check(placed, dims={B: 4}).codes == ("HF319",)

    def marked(*keep: bool) -> Marked:
        return Marked(ids=torch.arange(4), keep=torch.tensor(keep))

    with learning.compile(placed, dims={B: 4}).launch() as running:
        assert running.step(marked(True, False, False, True)) == [2]
        with pytest.raises(hf.SizeError, match=r"HF319: .*'learner.update' requires B <= 2, but B = 3"):
            running.step(marked(True, False, True, True))


class Long(hf.Batch):
    ids: hf.i64[B, P]
    values: hf.f32[B, P] | None


class Wide(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def split(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.DP_PROTO)
    def both(self, rows: Rows, others: Others) -> Rows:
        return rows

    @register(Dispatch.DP_PROTO)
    @hf.provides("values", when="P <= 4")
    def value(self, rows: Rows) -> Long:
        return Long(ids=rows.ids, values=hf.f32(torch.zeros(rows.ids.tensor.shape)))


@hf.dataflow
def split(rows: Rows, wide: Wide) -> Rows:
    return wide.split(rows)


class Pairs(hf.Batch):
    ids: hf.i64[Div[B, Literal[2]], P]


@hf.function(rows=hf.Whole)
def pair(rows: Rows) -> Pairs:
    return Pairs(ids=rows.ids.tensor[::2])


@hf.dataflow
def paired(rows: Rows) -> Pairs:
    return pair(rows)


@hf.dataflow
def halves(rows: Rows) -> tuple[Rows, ...]:
    return hf.minibatches(rows, 2)


@hf.dataflow
def together(rows: Rows, others: Others, wide: Wide) -> Rows:
    return wide.both(rows, others)


@hf.dataflow
def some(rows: Rows) -> Rows:
    return hf.take(rows, 4)


@hf.dataflow
def valued(rows: Rows, wide: Wide) -> hf.f32[B, P]:
    return hf.present(wide.value(rows).values)


def others(count: int) -> Others:
    return Others(ids=torch.arange(count))


def marked(*keep: bool) -> Marked:
    return Marked(ids=torch.arange(len(keep)), keep=torch.tensor(keep))


@pytest.mark.parametrize(
    ("flow", "good", "bad", "rule", "shown"),
    [
        (scoring, [rows(4)], [rows(5)], "HF322", "B = 5, P = 3"),
        (side_by_side, [rows(4), others(4)], [rows(4), others(3)], "HF212", "N = 3"),
        (split, [rows(4)], [rows(5)], "HF310", "B = 5"),
        (halves, [rows(4)], [rows(5)], "HF310", "B = 5"),
        (paired, [rows(4)], [rows(5)], "HF303", "B = 5"),
        (together, [rows(4), others(4)], [rows(4), others(6)], "HF420", "N = 6"),
        (some, [rows(4)], [rows(3)], "HF321", "B = 3"),
        (valued, [rows(4, 4)], [rows(4, 5)], "HF231", "P = 5"),
        (learning, [marked(True, False)], [marked(True, True, True)], "HF322", "kept1 = 3"),
    ],
)
def test_warning_and_guard_have_one_code(
    flow: hf.Dataflow[..., Any], good: list[hf.Batch], bad: list[hf.Batch], rule: str, shown: str
) -> None:
    pool = hf.ResourcePool([2], use_gpu=False)
    places = {
        "actor": hf.place(Actor, pool=hf.ResourcePool([1], use_gpu=False)),
        "wide": hf.place(Wide, pool=pool),
        "learner": hf.place(Learner, pool=hf.ResourcePool([1], use_gpu=False)),
    }
    used = hf.Deployment(**{name: place for name, place in places.items() if name in signature(flow).parameters})
    warned = {finding.code for finding in flow.check(used)}
    with flow.compile(used).launch() as running:
        running.step(*good)
        with pytest.raises(hf.SizeError) as raised:
            running.step(*bad)
        assert warned == {raised.value.code} == {"HF319"}
        assert f"({rule}, line " in raised.value.message
        assert shown in raised.value.message


def test_a_size_that_was_decided_keeps_the_code_of_its_rule() -> None:
    with halves.compile(hf.Deployment(), dims={B: 4}).launch() as running:
        assert running.plan.report.findings == ()
        with pytest.raises(hf.SizeError) as raised:
            running.step(rows(5))
        assert raised.value.code == "HF302"
