# mypy: disable-error-code="empty-body"
"""Repairs are tried within a budget, and a command that makes them has none."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.check.findings import Edit
from hfdsl.check.repair import trials
from hfdsl.check.repair.trials import Trials, rewritten
from hfdsl.check.report import Report
from hfdsl.check.run import build_context
from hfdsl.graph.spans import Span

MISSPELLED = trials.MAX_PLACES + 4
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


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checked(tmp_path: Path) -> Report:
    file = tmp_path / "misspelled.py"
    file.write_text(HEAD + "    look(prompts.lenght)\n" * MISSPELLED)
    report: Report = loaded(file).program.check()
    return report


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return checked(tmp_path)


def test_the_first_places_have_fixes(report: Report) -> None:
    assert [bool(finding.fixes) for finding in report] == [True] * trials.MAX_PLACES + [False] * 4


def test_the_others_have_the_same_words_as_a_note(report: Report) -> None:
    words = ("did you mean 'length'?",)
    assert [finding.help for finding in report] == [words] * trials.MAX_PLACES + [()] * 4
    assert [finding.notes for finding in report] == [()] * trials.MAX_PLACES + [words] * 4


def test_a_command_that_makes_them_tries_all(tmp_path: Path) -> None:
    token = trials.thorough.set(True)
    try:
        assert all(finding.fixes for finding in checked(tmp_path))
    finally:
        trials.thorough.reset(token)


def test_in_a_program_that_is_too_large_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MAX_VISITS", MISSPELLED)  # less than its mistakes and nodes
    assert not any(finding.fixes for finding in checked(tmp_path))


@pytest.mark.parametrize(("work", "most"), [(5, 0), (6, 1), (12, 2)])
def test_each_trial_goes_through_all_nodes_and_mistakes(work: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> None:
        for _ in range(2):
            actor.look(rows.x)  # type: ignore[arg-type]  # the mistake

    context = build_context(program.body, None, {})
    assert (len(context.program.graph.nodes), len(context.program.inference.mismatches)) == (3, 2)
    monkeypatch.setattr(trials, "MAX_VISITS", work)
    assert Trials(context, lambda _: ()).most == most


# -- a function with another text


def number() -> int:
    return 1


PLACE = Span(__file__, number.__code__.co_firstlineno + 1, 11, number.__code__.co_firstlineno + 1, 12)


def test_a_function_is_recompiled_and_may_be_again() -> None:
    second = rewritten(number, [Edit(PLACE, "2")])
    assert second is not None
    assert (number(), second(), second.__name__, second.__module__) == (1, 2, "number", __name__)
    third = rewritten(second, [Edit(PLACE, "3")])
    assert third is not None
    assert third() == 3


ELSEWHERE = Span("other.py", PLACE.line, PLACE.column, PLACE.end_line, PLACE.end_column)


def test_defaults_go_along() -> None:
    def add(one: int = 1, *, other: int = 2) -> int:
        return one + other

    line = add.__code__.co_firstlineno + 1
    less = rewritten(add, [Edit(Span(__file__, line, 19, line, 20), "-")])
    assert less is not None
    assert (add(), less(), less(5), less(other=5)) == (3, -1, 3, -4)


@pytest.mark.parametrize("edit", [Edit(PLACE, "2\n"), Edit(ELSEWHERE, "2"), Edit(PLACE, "(")])
def test_edits_of_other_files_or_lines_are_not_tried(edit: Edit) -> None:
    assert rewritten(number, [edit]) is None


def test_recompiled_code_has_the_future_imports_of_its_module(tmp_path: Path) -> None:
    file = tmp_path / "annotated.py"
    file.write_text("def inner():\n    def one(x: int): ...\n    return one.__annotations__, 1\n")
    edited = rewritten(loaded(file).inner, [Edit(Span(str(file), 3, 32, 3, 33), "2")])
    assert edited is not None
    assert edited() == ({"x": int}, 2), "that module does not put annotations off, though this one does"


def test_only_plain_functions_that_can_be_told_apart_are_tried() -> None:
    @functools.wraps(number)
    def wrapper() -> int:
        return 1

    class Counter:
        def number(self) -> int:
            return 1

    pair = [lambda: 1, lambda: 2]
    for body in (None, functools.partial(number), wrapper, Counter().number, *pair):
        line = body.__code__.co_firstlineno if isinstance(body, FunctionType) else PLACE.line
        assert rewritten(body, [Edit(Span(__file__, line, 0, line, 0), "")]) is None


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


class Heads(hf.Worker):
    def __init__(self, heads: int = 4) -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.requires("B % hedas == 0")
    def look(self, rows: Rows) -> Rows: ...


@hf.dataflow
def heads(rows: Rows, actor: Heads) -> Rows:
    return actor.look(rows)


@pytest.mark.parametrize(("sizes", "fixes"), [(8, 1), ((8, 12), 1), ((8, 6), 0), ((6, 8), 0)])
def test_a_name_is_replaced_where_all_sizes_then_meet_the_requirement(sizes: Any, fixes: int) -> None:
    placed = hf.Deployment(actor=hf.place(Heads, pool=hf.ResourcePool([1], use_gpu=False)))
    [finding] = heads.check(placed, {B: sizes}).findings
    assert (finding.code, len(finding.fixes)) == ("HF323", fixes)


def test_of_two_misspelled_names_none_is_replaced_alone() -> None:
    placed = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([1], use_gpu=False)))
    [finding] = looking.check(placed, {B: 4}).findings
    assert (finding.code, finding.fixes) == ("HF323", ())


class Reader(hf.Worker):
    def __init__(self, micro: int, macro: int, longest: int, longer: int) -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.requires("micro == 2 or lonest % 4 == 0")
    def look(self, rows: Rows) -> Rows: ...


class Other(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def skim(self, rows: Rows) -> Rows: ...


@hf.dataflow
def reading(rows: Rows, reader: Reader, other: Other) -> Rows:
    return other.skim(reader.look(rows))


def test_the_nearest_name_that_holds_replaces_one_that_is_unknown() -> None:
    pool = hf.ResourcePool([1], use_gpu=False)
    placed = hf.Deployment(reader=hf.place(Reader, 1, 2, 4, 8, pool=pool), other=hf.place(Other, pool=pool))
    [finding] = reading.check(placed, {B: 4}).findings
    assert finding.code == "HF323"
    assert [fix.title for fix in finding.fixes] == ["replace 'lonest' by 'longest'"]
