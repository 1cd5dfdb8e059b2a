"""The corpus: public mistakes are found, each with its code at its line, and valid programs check clean and run."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.check.codes import CODES
from tests.corpus.table import AREAS, PAGE, VALID, Program, programs, render, without_times

PROGRAMS = programs()
GOOD = sorted(file.stem for file in VALID.glob("*.py"))
THREAD = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/[1-9]\d*")


def experiment(name: str) -> hf.Experiment:
    loaded: hf.Experiment = importlib.import_module(f"tests.corpus.valid.{name}").experiment
    return loaded


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 120
    assert len(GOOD) >= 40


def test_every_area_has_programs() -> None:
    assert {program.area for program in PROGRAMS} == set(AREAS)


def test_every_program_has_a_thread_of_its_own() -> None:
    assert [program.name for program in PROGRAMS if not THREAD.fullmatch(program.seen)] == []
    assert len({program.seen for program in PROGRAMS}) == len(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_public_mistake_is_found_where_it_is(program: Program) -> None:
    report = program.experiment.check()
    places = [(finding.primary.span.line, finding.code) for finding in report.findings]
    assert places == [(program.line, program.code)], str(report)
    assert Path(report.findings[0].primary.span.file) == program.file
    assert report.ok is (CODES[program.code].severity == "warning")


@pytest.mark.parametrize("name", GOOD)
def test_a_valid_program_is_clean(name: str) -> None:
    report = experiment(name).check()
    assert report.findings == (), str(report)


@pytest.mark.parametrize("name", GOOD)
def test_a_valid_program_runs(name: str) -> None:
    valid = experiment(name)
    assert valid.batches is not None
    [batch] = valid.batches()
    arguments = batch if isinstance(batch, tuple) else (batch,)
    one_size = {dim: size for dim, size in (valid.dims or {}).items() if isinstance(size, int)}
    plan = valid.dataflow.compile(valid.deployment, one_size, valid.cluster)
    with plan.launch("local") as running:
        [first] = running.stream([arguments]) if plan.split.queues else [running.step(*arguments)]
    assert _leaves(first)


def _leaves(result: Any) -> list[Any]:
    """What a dataflow gave, flat: not one value of it may be missing."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        leaves = [leaf for part in result for leaf in _leaves(part)]
        assert leaves
        return leaves
    assert result is not None
    return [result]


def test_the_page_has_a_row_for_each_program() -> None:
    page = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| .*?\((https://\S+)\) \| .* \| (HF\d{3}) .* \| \d+\.\d \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted((program.seen, program.code) for program in PROGRAMS)


def test_the_page_is_what_the_programs_say() -> None:
    """Where this fails: ``python -m tests.corpus.table``."""
    zero = dict.fromkeys((program.name for program in PROGRAMS), 0.0)
    assert without_times(PAGE.read_text("utf-8")) == without_times(render(PROGRAMS, zero, {}, "", 0))
