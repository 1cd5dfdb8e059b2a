# mypy: disable-error-code="empty-body"
"""Calls that a loop unrolls into are looked at once; a call that is wrong is looked at by itself."""

from __future__ import annotations

from typing import Any, Literal

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.run import build_context


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Made(Rows):
    loss: hf.Metric[float, Literal["mean"]]


@hf.function
def scaled(rows: Rows) -> Rows: ...


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def make(self, rows: Rows) -> Made: ...

    @register(Dispatch.DP_PROTO)
    def table(self, rows: Rows) -> hf.f32[B, R]: ...

    @register(Dispatch.DP_PROTO)
    def read(self, table: hf.f32[B, R]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def use(self, rows: Rows, x: hf.f32[B], loss: hf.Metric[float, Literal["mean"]]) -> Rows: ...


def firsts(flow: hf.Dataflow[..., Any], label: str) -> tuple[int, int]:
    """How many calls there are of a method, and how many are looked at."""
    context = build_context(flow.body, None, {})
    kinds = [kind for kind in context.program.kinds if kind[0].label == label]
    return sum(map(len, kinds)), len(kinds)


@hf.dataflow
def turns(rows: Rows, role: Role) -> Rows:
    for _ in range(3):
        rows = scaled(role.make(rows))
    return role.make(hf.repeat(rows, 2))


@hf.dataflow
def wrong(rows: Rows, role: Role) -> None:
    for _ in range(3):
        role.make(rows.x)  # type: ignore[arg-type]  # the mistake


def test_a_loop_is_looked_at_once_and_what_has_other_rows_or_is_wrong_by_itself() -> None:
    assert firsts(turns, "role.make") == (4, 2)
    assert firsts(turns, "scaled") == (3, 1)
    assert firsts(wrong, "role.make") == (3, 3)


@hf.dataflow
def parts(rows: Rows, role: Role) -> Rows:
    made_rows = role.make(hf.repeat(rows, 2))
    return role.use(made_rows, made_rows.x, made_rows.loss)


def test_a_metric_of_a_record_has_no_rows_and_a_column_has_those_of_its_record() -> None:
    context = build_context(parts.body, None, {})
    argument_rows = context.program.argument_rows[-1]
    assert {port: str(rows) for port, rows in argument_rows.items()} == {"rows": "B*2", "x": "B*2"}


@hf.dataflow
def tables(rows: Rows, role: Role) -> None:
    role.read(role.table(rows))


def test_the_rows_of_a_column_are_its_first_dim() -> None:
    context = build_context(tables.body, None, {})
    argument_rows = context.program.argument_rows[-1]
    assert {port: str(rows) for port, rows in argument_rows.items()} == {"table": "B"}
