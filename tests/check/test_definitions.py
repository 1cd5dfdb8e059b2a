# mypy: disable-error-code="empty-body, valid-type, type-var"
"""Type variables in records: what no call binds is told with the dim that is to be written in its place."""

from __future__ import annotations

from typing import TypeVar

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim): ...


rows = TypeVar("rows")
length = TypeVar("length")
t = TypeVar("t")


class Given(hf.Batch):
    x: f32[B]


class Open(hf.Batch):
    """Its rows are those of a call, and one of its lengths is nobody's."""

    x: f32[rows]
    y: f32[rows, B, length]
    z: f32[rows, t]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def make(self, given: Given) -> Open: ...

    @register(Dispatch.DP_PROTO)
    def take(self, made: Open) -> None: ...


@hf.dataflow
def made(given: Given, role: Role) -> None:
    role.take(role.make(given))


@hf.dataflow
def given(opened: Open, role: Role) -> None:
    role.take(opened)


def unbound(flow: hf.Dataflow[..., None]) -> list[tuple[str, str]]:
    findings = [finding for finding in flow.check() if finding.message.startswith("column")]
    return [(finding.message.split(",")[0].partition(" is ")[0], finding.notes[0]) for finding in findings]


def test_a_call_binds_the_rows_of_a_record_and_nothing_binds_those_of_an_input() -> None:
    lengths = [
        ("column 'y' of 'Open'", "write a dim in its place: class Length(hf.Dim): ..."),
        ("column 'z' of 'Open'", "write a dim in its place: class T(hf.Dim): ..."),
    ]
    note = "write a dim in its place: class Rows(hf.Dim): ..."
    assert unbound(made) == lengths
    assert unbound(given) == [
        ("column 'x' of 'Open'", note),
        lengths[0],
        ("column 'y' of 'Open'", note),
        ("column 'z' of 'Open'", note),
        lengths[1],
    ]
