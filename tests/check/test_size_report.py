# mypy: disable-error-code="empty-body"
"""What is demanded of sizes, in words and as numbers: every size that is called good works, and no other."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Add, Dispatch, Mul, register
from hfdsl.check.run import build_context
from hfdsl.check.sizes.constraints import SizeSet
from hfdsl.check.sizes.report import DimReport, size_report


class B(hf.Dim): ...


class N(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Table(hf.Batch):
    x: hf.f32[Mul[B, N]]


class Wide(hf.Batch):
    x: hf.f32[B, R]


class Actor(hf.Worker):
    def __init__(self, longest: int = 64) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B >= 6", "R <= longest", "R == 8 or R == 16", "B * B % 16 == 0")
    def read(self, rows: Wide) -> None: ...

    @register(Dispatch.DP_PROTO)
    def look(self, table: Table) -> None: ...


@hf.dataflow
def program(rows: Wide, table: Table, actor: Actor) -> None:
    actor.read(rows)
    actor.look(table)


PLACED = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([4], use_gpu=False)))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (SizeSet(), "any size"),
        (SizeSet(step=4), "a multiple of 4"),
        (SizeSet(residue=3, step=4), "3 more than a multiple of 4"),
        (SizeSet(step=4, least=4), "a multiple of 4"),
        (SizeSet(step=4, least=5), "a multiple of 4, at least 8"),
        (SizeSet(residue=3, step=4, least=4), "3 more than a multiple of 4, at least 7"),
        (SizeSet(least=2), "at least 2"),
        (SizeSet(most=9), "at most 9"),
        (SizeSet(step=4, most=3), "no size satisfies all of this"),
        (SizeSet(most=0), "no size satisfies all of this"),
    ],
)
def test_sizes_in_words(sizes: SizeSet, words: str) -> None:
    assert str(DimReport(B, (), (), sizes, ())) == words


def reports(dims: dict[Any, Any]) -> tuple[dict[str, DimReport], dict[str, bool | None]]:
    alone, others = size_report(build_context(program.body, PLACED, dims))
    return {str(report.dim): report for report in alone}, {demand.need: demand.holds for demand in others}


def test_without_sizes_all_is_open() -> None:
    alone, others = reports({})
    assert {dim: (str(report), report.given, report.beside, len(report.demands)) for dim, report in alone.items()} == {
        "B": ("a multiple of 4, at least 8", (), (), 3),
        "R": ("at most 64", (), (), 1),
    }
    assert others == {"4 must divide B*N": None, "R == 8 or R == 16 (R = ?)": None}
    assert {demand.holds for report in alone.values() for demand in report.demands} == {None}


def test_a_demand_on_two_dims_is_one_on_each_once_the_other_has_a_size() -> None:
    alone, others = reports({B: 10, R: 16})
    assert (str(alone["N"]), alone["N"].given, alone["N"].beside) == ("a multiple of 2", (), ((B, 10),))
    assert (alone["B"].given, alone["B"].beside) == ((10,), ())
    assert others == {"R == 8 or R == 16 (R = 16)": True}
    assert [demand.need for demand in alone["B"].broken] == ["4 must divide B", "16 must divide B*B"]


def test_of_several_sizes_all_must_work() -> None:
    alone, _ = reports({B: (8, 12), R: (16, 80), N: 1})
    assert (alone["B"].given, [demand.holds for demand in alone["B"].demands]) == ((8, 12), [True] * 4)
    assert [(demand.need, demand.holds) for demand in alone["R"].demands] == [("R <= longest with longest = 64", False)]


t = TypeVar("t")


@hf.function
def shifted(x: hf.f32[B, Add[t, Literal[4]]]) -> hf.f32[B, t]: ...


@hf.function
def last_left_out(x: hf.f32[B, Add[t, Literal[1]]]) -> hf.f32[B, t]: ...


@hf.function
def halved(x: hf.f32[B, Mul[t, Literal[2]]]) -> hf.f32[B, t]: ...


def test_a_call_leaves_a_size_of_at_least_1() -> None:
    def body(rows: Wide) -> object:
        return last_left_out(rows.x)  # type: ignore[arg-type]  # solved with the sizes

    (alone,), _ = size_report(build_context(body, None, {}))
    assert (alone.dim, str(alone)) == (R, "at least 2")


def test_cuts_and_divisions_of_a_call_are_demands_without_sizes() -> None:
    def body(rows: Wide) -> object:
        return shifted(rows.x), halved(rows.x)  # type: ignore[arg-type]  # solved with the sizes

    (alone,), others = size_report(build_context(body, None, {}))
    assert (alone.dim, str(alone)) == (R, "a multiple of 2, at least 6")
    assert [demand.need for demand in alone.demands] == ["2 must divide R", "R-4 >= 1"]
    assert (others, hf.dataflow(body).check().findings) == ((), ()), "no launch has to know them"
    for size, works in ((4, False), (5, False), (6, True)):
        assert hf.dataflow(body).check(dims={R: size}).ok is works


class Kept(hf.Batch):
    x: hf.f32[B]
    keep: hf.bool_[B]


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.requires("B != 12", "B <= width")
    def read(self, rows: Kept) -> None: ...

    @register(Dispatch.DP_PROTO)
    def look(self, table: Table) -> None: ...


@hf.dataflow
def reading(rows: Kept, table: Table, reader: Reader) -> None:
    reader.read(hf.filter(rows, rows.keep))
    reader.look(table)


def test_demands_on_several_dims_are_listed_apart() -> None:
    placed = hf.Deployment(reader=hf.place(Reader, pool=hf.ResourcePool([4], use_gpu=False)))
    alone, others = size_report(build_context(reading.body, placed, {}))
    assert alone == (), "how many rows are kept is for no one to choose"
    assert [(demand.need, demand.holds) for demand in others] == [
        ("4 must divide kept1", None),
        ("4 must divide B*N", None),
        ("B != 12 (B = ?)", None),
        ("B <= width", None),  # it names nothing: HF323
    ]


@given(st.integers(1, 40), st.integers(1, 6))
def test_reported_demands_hold_exactly_where_a_check_passes(b: int, n: int) -> None:
    sizes: dict[Any, Any] = {B: b, N: n, R: 8}
    alone, others = reports(sizes)
    rules = [demand.holds for report in alone.values() for demand in report.demands]
    assert None not in rules
    assert all((*rules, *others.values())) is program.check(PLACED, sizes).ok


def test_dims_stand_in_the_order_in_which_inputs_name_them() -> None:
    context = build_context(program.body, PLACED, {B: (12, 8), R: 8})
    assert context.sizes == {B: 12, R: 8}
    assert context.alternatives == {B: (12, 8)}
