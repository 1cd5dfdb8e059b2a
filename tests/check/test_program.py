# mypy: disable-error-code="empty-body"
"""What a check knows of a program: the dims that it names, the rows that a call lacks, and how long it took."""

from __future__ import annotations

from itertools import count
from typing import Any, Literal, TypeVar

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.check import run


class B(hf.Dim): ...


class Read(hf.Dim): ...


class Made(hf.Dim): ...


class Aside(hf.Dim): ...


class Ranked(hf.Dim): ...


class Placed(hf.Dim): ...


class Absent(hf.Dim): ...


n = TypeVar("n")


class Rows(hf.Batch):
    x: f32[B, Read]


class Table(hf.Batch):
    x: f32[B, Made]


class Totals(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def look(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def turn(self, x: f32[B, Aside], parts: hf.PerRank[f32[B, Ranked]]) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B % 4 == 0")
    def column(self, x: f32[B, Read], number: int, totals: Totals) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B % 4 == 0")
    def record(self, rows: Rows, number: int, totals: Totals) -> None: ...

    @register(Dispatch.DP_PROTO)
    def total(self, rows: Rows) -> Totals: ...


class Larger(Role):
    @register(Dispatch.DP_PROTO)
    def more(self, x: f32[B, Placed]) -> None: ...


@hf.function
def made(rows: Rows) -> Table: ...


@hf.function
def same(x: f32[n, Made]) -> f32[n, Made]: ...


@hf.dataflow
def program(rows: Rows, role: Role) -> f32[B, Made]:
    return same(made(role.look(rows)).x)


deployment = hf.Deployment(role=hf.place(Larger, pool=hf.ResourcePool([2], use_gpu=False)))


def test_a_size_is_for_a_dim_of_the_program_of_any_method_or_of_a_placed_role() -> None:
    dims: dict[Any, Any] = dict.fromkeys((B, Read, Made, Aside, Ranked, Placed), 8)
    assert program.check(deployment, dims).findings == ()
    [finding] = program.check(deployment, {**dims, Absent: 8}).findings
    assert finding.code == "HF305"
    assert finding.message == "size Absent = 8 is given, but 'program' does not have a dim of that name"
    head, _, listed = finding.notes[0].partition(": ")
    assert (head, sorted(listed.split(", "))) == ("its dims", ["Aside", "B", "Made", "Placed", "Ranked", "Read"])
    # Without a deployment nothing is placed.
    assert {finding.message.split()[1] for finding in program.check(dims=dims)} == {"Placed"}


@hf.dataflow
def without_column(rows: Rows, role: Role) -> None:
    role.column(number=1, totals=role.total(rows))  # type: ignore[call-arg]  # on purpose


@hf.dataflow
def without_record(rows: Rows, role: Role) -> None:
    role.record(number=1, totals=role.total(rows))  # type: ignore[call-arg]  # on purpose


@hf.dataflow
def without_number(rows: Rows, role: Role) -> None:
    role.record(rows, totals=role.total(rows))  # type: ignore[call-arg]  # on purpose


@pytest.mark.parametrize(
    ("flow", "codes"),
    [
        (without_column, {"HF203"}),
        (without_record, {"HF203"}),
        (without_number, {"HF203", "HF322"}),  # its rows are there, and too few
    ],
)
def test_nothing_is_required_of_rows_that_a_call_is_not_given(flow: Any, codes: set[str]) -> None:
    assert set(flow.check(deployment, {B: 6}).codes) == codes


def test_a_report_tells_how_much_was_checked_and_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "perf_counter", count(100, 0.25).__next__)
    assert program.check().facts == " (4 nodes, 1 role, 250.0 ms)"
