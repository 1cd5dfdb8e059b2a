# mypy: disable-error-code="empty-body, valid-type, type-var"
"""Type variables in records: one that no call binds is reported with the dim to write in its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim): ...


rows = TypeVar("rows")
length = TypeVar("length")
t = TypeVar("t")


class Inputs(hf.Batch):
    x: f32[B]


class Open(hf.Batch):
    """Its rows are those of a call, and one of its lengths is nobody's."""

    x: f32[rows]
    y: f32[rows, B, length]
    z: f32[rows, t]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def make(self, inputs: Inputs) -> Open: ...

    @register(Dispatch.DP_PROTO)
    def take(self, opened: Open) -> None: ...


@hf.dataflow
def from_a_call(inputs: Inputs, role: Role) -> None:
    role.take(role.make(inputs))


@hf.dataflow
def from_the_caller(opened: Open, role: Role) -> None:
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
    assert unbound(from_a_call) == lengths
    assert unbound(from_the_caller) == [
        ("column 'x' of 'Open'", note),
        lengths[0],
        ("column 'y' of 'Open'", note),
        ("column 'z' of 'Open'", note),
        lengths[1],
    ]


def test_of_a_record_that_is_made_the_call_binds_the_rows_alone() -> None:
    class Maker(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def make(self, inputs: Inputs) -> Open: ...

        @register(Dispatch.ONE_TO_ALL)
        def lists(self, inputs: Inputs) -> Open: ...

    def messages_of(body: Callable[[Inputs, Any], Any]) -> set[str]:
        def program(inputs: Inputs, maker: Any) -> object:
            return body(inputs, maker)

        program.__annotations__ |= {"inputs": Inputs, "maker": Maker}
        findings = hf.dataflow(program).check().findings
        assert {finding.code for finding in findings} == {"HF108"}
        return {re.sub(r" of | is .*| in the .*", " ", finding.message) for finding in findings}

    mistakes = {"'rows' ", "column 'y' 'Open' ", "column 'z' 'Open' "}
    assert messages_of(lambda inputs, maker: maker.make(inputs)) == mistakes
    assert messages_of(lambda inputs, maker: maker.lists(inputs)) == mistakes
    assert messages_of(lambda inputs, maker: listed(inputs)) == mistakes


@hf.function
def listed(inputs: Inputs) -> hf.PerRank[Open]: ...


def test_a_signature_is_reported_at_its_first_call() -> None:
    @hf.dataflow
    def program(inputs: Inputs, role: Role) -> None:
        role.take(role.make(inputs))
        role.take(role.make(inputs))

    [finding] = [finding for finding in program.check() if finding.message.startswith("'rows'")]
    [called] = finding.related
    assert (called.text, called.span.line) == ("called here", program.body.__code__.co_firstlineno + 2)
