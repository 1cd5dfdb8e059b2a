# mypy: disable-error-code="empty-body"
"""Repairs are tried within a budget, and a command that makes them has none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import hfdsl as hf
from hfdsl.check.findings import Edit, Report
from hfdsl.check.repair import trials
from hfdsl.check.repair.trials import rewritten
from hfdsl.graph.spans import Span

MISSPELT = trials.MOST + 4
HEAD = """\
import hfdsl as hf


class B(hf.Dim): ...


class Prompts(hf.Batch):
    length: hf.i64[B]


@hf.function
def look(length: hf.i64[B]) -> Prompts: ...


@hf.dataflow
def program(prompts: Prompts):
"""


def checked(tmp_path: Path) -> Report:
    file = tmp_path / "misspelt.py"
    file.write_text(HEAD + "    look(prompts.lenght)\n" * MISSPELT)
    spec = importlib.util.spec_from_file_location("misspelt", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Report = module.program.check()
    return found


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return checked(tmp_path)


def test_the_first_places_have_fixes(report: Report) -> None:
    assert [bool(finding.fixes) for finding in report] == [True] * trials.MOST + [False] * 4


def test_the_others_have_the_same_words_as_a_note(report: Report) -> None:
    words = ("did you mean 'length'?",)
    assert [finding.help for finding in report] == [words] * trials.MOST + [()] * 4
    assert [finding.notes for finding in report] == [()] * trials.MOST + [words] * 4


def test_a_command_that_makes_them_tries_all(tmp_path: Path) -> None:
    token = trials.thorough.set(True)
    try:
        assert all(finding.fixes for finding in checked(tmp_path))
    finally:
        trials.thorough.reset(token)


def test_in_a_program_that_is_too_large_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "WORK", MISSPELT)  # less than its mistakes and nodes
    assert not any(finding.fixes for finding in checked(tmp_path))


# -- a function with another text


def number() -> int:
    return 1


PLACE = Span(__file__, number.__code__.co_firstlineno + 1, 11, number.__code__.co_firstlineno + 1, 12)


def test_a_function_is_made_anew_and_may_be_again() -> None:
    two = rewritten(number, [Edit(PLACE, "2")])
    assert two is not None
    assert (number(), two(), two.__name__, two.__module__) == (1, 2, "number", __name__)
    three = rewritten(two, [Edit(PLACE, "3")])
    assert three is not None
    assert three() == 3


ELSEWHERE = Span("other.py", PLACE.line, PLACE.column, PLACE.end_line, PLACE.end_column)


def test_defaults_go_along() -> None:
    def add(one: int = 1, *, other: int = 2) -> int:
        return one + other

    line = add.__code__.co_firstlineno + 1
    less = rewritten(add, [Edit(Span(__file__, line, 19, line, 20), "-")])
    assert less is not None
    assert (add(), less(), less(5), less(other=5)) == (3, -1, 3, -4)


@pytest.mark.parametrize("edit", [Edit(PLACE, "2\n"), Edit(ELSEWHERE, "2"), Edit(PLACE, "(")])
def test_what_another_file_or_other_lines_would_say_is_not_tried(edit: Edit) -> None:
    assert rewritten(number, [edit]) is None


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Actor(hf.Worker):
    def __init__(self, longest: int = 4, heads: int = 4) -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.requires("lonest % hedas == 0")
    def look(self, rows: Rows) -> Rows: ...


@hf.dataflow
def looking(rows: Rows, actor: Actor) -> Rows:
    return actor.look(rows)


def test_of_two_misspelt_names_none_is_replaced_alone() -> None:
    placed = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([1], use_gpu=False)))
    [finding] = looking.check(placed, {B: 4}).findings
    assert (finding.code, finding.fixes) == ("HF323", ())
