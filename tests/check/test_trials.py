"""Repairs are tried within a budget, and a command that makes them has none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from hfdsl.check.findings import Report
from hfdsl.check.repair import trials

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
