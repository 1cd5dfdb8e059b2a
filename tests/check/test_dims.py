# mypy: disable-error-code="empty-body, type-var, valid-type"
"""Given sizes: which are asked for, and which are of no dim of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.graph.dims import program_dims


class B(hf.Dim): ...


class N(hf.Dim): ...


n = TypeVar("n")


class Rows(hf.Batch):
    x: f32[B]


class Others(hf.Batch):
    y: f32[N]


class Open(hf.Batch):
    z: f32[n]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def make(self, seed: int) -> Others: ...

    @register(Dispatch.DP_PROTO)
    def open(self, rows: Rows) -> Open: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % 2 == 0")
    def even(self, rows: Rows) -> Rows: ...


@hf.function
def table(rows: Rows) -> f32[N, B]: ...


@hf.function
def opened(rows: Rows) -> f32[n]: ...


Body = Callable[[Any, Any], Any]


def check(body: Body, dims: dict[type[hf.Dim], int], slots: int = 2, batch_type: type[hf.Batch] = Rows) -> hf.Report:
    def program(rows: Any, role: Any) -> object:
        return body(rows, role)

    program.__annotations__ |= {"rows": batch_type, "role": Role}
    deployment = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([slots])))
    return hf.dataflow(program).check(deployment, dims)


def test_the_rows_of_a_column_are_asked_for() -> None:
    @hf.dataflow
    def program(rows: Rows, role: Role) -> object:
        return role.even(rows), table(rows)

    [finding] = check(program.body, {B: 8}).findings
    assert (finding.code, finding.notes) == ("HF301", ("give the size: dims={N: ...}",))
    assert program.check(None, {B: 8}).ok, "without a deployment types alone are checked"


@pytest.mark.parametrize(("slots", "code"), [(1, "HF301"), (2, "HF413")])
def test_rows_of_a_call_that_has_none_to_split_are_not_asked_for(slots: int, code: str) -> None:
    assert check(lambda rows, role: (role.even(rows), role.make(0)), {B: 8}, slots).codes == (code,)


@pytest.mark.parametrize(
    ("body", "batch_type"),
    [
        (lambda rows, role: (role.even(rows), opened(rows)), Rows),
        (lambda rows, role: role.open(role.even(rows)), Rows),
        (lambda rows, role: rows, Open),
    ],
)
def test_no_size_is_asked_for_a_variable_that_nothing_binds(body: Body, batch_type: type[hf.Batch]) -> None:
    [finding] = [finding for finding in check(body, {B: 8}, batch_type=batch_type) if finding.code != "HF509"]
    assert finding.code == "HF108"


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([8], "dims= takes a dict of dim classes with their sizes, got [8]"),
        ({B: 0}, "size B = 0 is not a whole number of at least 1"),
        ({"B": 8}, "dims= takes dim classes with their sizes, got 'B': 8; write B without quotes"),
        ({int: 8}, "dims= takes dim classes with their sizes, got <class 'int'>: 8"),
    ],
)
def test_arguments_that_are_no_sizes_are_reported(dims: Any, message: str) -> None:
    findings = [finding for finding in check(lambda rows, role: role.even(rows), dims) if finding.code == "HF302"]
    assert [finding.message for finding in findings] == [message]


def test_the_rows_of_a_queue_are_a_dim_of_the_program() -> None:
    class Taken(hf.Dim): ...

    def program(rows: Any, role: Any) -> Any:
        return role.even(hf.queue(role.even(rows), rows=Taken, lag=2, late="wait"))

    assert "HF305" not in check(program, {B: 8, Taken: 4}).codes
    assert "HF301" in check(program, {B: 8}).codes, "whose size is asked for"
    program.__annotations__ |= {"rows": Rows, "role": Role}
    assert {*program_dims(hf.dataflow(program).trace())} == {B, Taken}, "which a configuration may give"


def test_a_dim_that_the_program_lacks_is_reported_from_one_of_the_same_name() -> None:
    class Z(hf.Dim): ...

    def other() -> type[hf.Dim]:
        class B(hf.Dim): ...

        return B

    def reason(dim: type[hf.Dim]) -> str:
        [finding] = check(lambda rows, role: role.even(rows), {B: 8, dim: 8}).findings
        assert finding.code == "HF305"
        return finding.message.partition("does not have ")[2]

    assert reason(Z) == "a dim of that name"
    assert (
        reason(other()) == "this dim: its 'B' is another class of that name"
    )  # though a method requires something of B


def test_where_a_program_stops_its_dims_are_not_known() -> None:
    class Later(hf.Dim): ...

    def stops(rows: Any, role: Any) -> object:
        role.even(rows)
        raise ValueError("before the call that has the dim")

    assert check(stops, {B: 8, Later: 8}).codes == ("HF610",)
