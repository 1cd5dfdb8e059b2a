# mypy: disable-error-code="empty-body"
"""A dataflow is traced twice: changes between the traces are reported, and values that only look new are not."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.rules.dataflow import repeatable


class B(hf.Dim): ...


class Rows(hf.Batch):
    value: hf.f32[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def work(self, rows: Rows, setting: object = None) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def rest(self, rows: Rows) -> Rows: ...


class Plain:
    """An object that is equal to nothing but itself."""


@dataclass
class Config:
    rate: float
    part: object = None


class Mode(Enum):
    FAST = 1


def check(body: Callable[[Any, Any], Any]) -> hf.Report:
    @hf.dataflow
    def program(rows: Rows, role: Role) -> object:
        return body(rows, role)

    return program.check()


counter = itertools.count()

ALIKE = [
    lambda: None,
    lambda: 0.5,
    lambda: math.nan,
    lambda: {"rate": [1, 2.0, (True, b"x")], "part": Plain()},
    Plain,
    lambda: Config(0.1, Plain()),
    lambda: lambda: 3,
    lambda: torch.zeros(3),
    lambda: torch.rand(3),  # data of its own: never compared
    lambda: Mode.FAST,
    lambda: {"a", "b"},
]


@pytest.mark.parametrize("make", ALIKE)
def test_values_that_are_recreated_are_no_change(make: Callable[[], object]) -> None:
    assert check(lambda rows, role: role.work(rows, make())).codes == ()


CHANGES: list[tuple[Callable[[], object], str]] = [
    (lambda: next(counter), "the first time"),
    (time.perf_counter_ns, "the first time"),
    (lambda: {"run": [str(next(counter))]}, "argument 'setting' is {'run'"),
    (lambda: Config(next(counter) / 2), "argument 'setting' is Config("),
    (lambda: Plain() if next(counter) % 2 else 3, "argument 'setting' is"),
    (lambda: "a" * (next(counter) % 2), "argument 'setting' is"),
    (lambda: None if next(counter) % 2 else 3, "argument 'setting' is"),
    (lambda: math.nan if next(counter) % 2 else 1.0, "argument 'setting' is"),
    (lambda: {"rate": [2] if next(counter) % 2 else (2,)}, "argument 'setting' is"),
]


@pytest.mark.parametrize(("make", "text"), CHANGES)
def test_a_constant_that_changes_is_reported(make: Callable[[], object], text: str) -> None:
    [finding] = check(lambda rows, role: role.work(rows, make())).findings
    assert finding.code == "HF609"
    assert text in finding.message
    assert finding.primary.span.file == __file__


def used_up(rows: Any, role: Any, source: Any = iter([1])) -> Any:  # noqa: B008  # shared on purpose
    return role.work(rows, next(source))


def shorter(rows: Any, role: Any, source: Any = iter([1, 2])) -> Any:  # noqa: B008  # the same
    for _ in source:
        rows = role.work(rows)
    return rows


def wrong_later(rows: Any, role: Any, source: Any = iter([False, True])) -> Any:  # noqa: B008  # the same
    return (rows.first_mistake, rows.other_mistake) if next(source) else role.work(rows)


def longer(rows: Any, role: Any, rounds: Any = itertools.count(1)) -> Any:  # noqa: B008  # the same
    for _ in range(next(rounds)):
        rows = role.rest(rows)
    return rows


STRUCTURE = [
    (lambda rows, role: role.work(rows) if next(counter) % 2 else role.rest(rows), "this is 'role."),
    (lambda rows, role: hf.repeat(rows, 1 + next(counter)), "'repeat' takes "),
    (lambda rows, role: role.work(rows, *(["x"] * (next(counter) % 2))), "left out"),
    (lambda rows, role: role.work(rows, *(["x"] * ((next(counter) + 1) % 2))), "left out"),
    (lambda rows, role: role.work(rows, rows if next(counter) % 2 else "x"), "a value of the graph"),
    (lambda rows, role: hf.take(rows, 1 + next(counter)), "'take' takes "),
    (lambda rows, role: (role.work(rows), role.rest(rows))[next(counter) % 2], "returns another value"),
    (lambda rows, role: role.rest((role.work(rows), rows)[next(counter) % 2]), "'rows' is another value of the graph"),
    (wrong_later, "the second time no column of that name (first_mistake)"),
    (used_up, "the second time the dataflow raised (StopIteration)"),
    (shorter, "'role.work' is called in one of two traces only"),
    (longer, "'role.rest' is called in one of two traces only"),
]


@pytest.mark.parametrize(("body", "text"), STRUCTURE)
def test_a_structure_that_changes_is_reported(body: Callable[[Any, Any], Any], text: str) -> None:
    report = check(body)
    [finding] = [finding for finding in report if finding.code == "HF609"]
    assert text in finding.message
    assert report.ok


def test_output_of_a_dataflow_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(lambda rows, role: [print("tracing"), role.work(rows)][1]).codes == ()
    assert capsys.readouterr().out == "tracing\n"


def test_a_large_program_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[int] = []

    def body(rows: Any, role: Any) -> Any:
        traces.append(len(traces))
        return role.work(role.rest(rows))

    check(body)
    monkeypatch.setattr(repeatable, "LIMIT", 3)
    check(body)
    assert traces == [0, 1, 2, 3], "the rows and two calls"
    monkeypatch.setattr(repeatable, "LIMIT", 2)
    check(body)
    assert traces == [0, 1, 2, 3, 4]


def test_both_traces_are_reported_in_their_order() -> None:
    counts = itertools.count(2)
    report = check(lambda rows, role: role.work(hf.repeat(rows, next(counts))))
    [message] = [finding.message for finding in report if finding.code == "HF609"]
    assert "takes 2 the first time, and 3 the second" in message


def test_a_program_with_mistakes_is_traced_once() -> None:
    traces: list[int] = []

    def body(rows: Any, role: Any) -> Any:
        traces.append(1)
        return role.work(rows.nothing_like_it)

    report = check(body)
    assert (report.codes, traces) == (("HF201",), [1])
