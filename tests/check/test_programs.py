"""No false alarms: valid programs check clean, with all sizes given, with some, and with none."""

from __future__ import annotations

import importlib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = sorted(p.stem for p in (Path(__file__).parent / "programs").glob("*.py") if p.stem != "vocabulary")


def load(name: str) -> Any:
    return importlib.import_module(f"tests.check.programs.{name}")


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 10


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_valid_program_is_clean(name: str) -> None:
    program = load(name)
    report = program.program.check(program.deployment, program.dims)
    assert report.findings == (), str(report)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_are_left_open_are_at_most_warnings(name: str) -> None:
    program = load(name)
    for count in range(len(program.dims)):
        for sized in combinations(program.dims, count):
            for deployment in (program.deployment, None):
                report = program.program.check(deployment, {dim: program.dims[dim] for dim in sized})
                assert set(report.codes) <= {"HF319"}, str(report)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_open_size_is_reported_where_rows_are_split(name: str) -> None:
    program = load(name)
    report = program.program.check(program.deployment)
    assert set(report.codes) == (set() if name == "best_of_n" else {"HF319"})  # there every size is a multiple of 16


def test_a_size_that_cannot_matter_is_not_asked_for() -> None:
    program = load("grpo")
    [split] = program.program.check(program.deployment, {})
    assert split.notes == ("give the size: dims={B: ...}",)
