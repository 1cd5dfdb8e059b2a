"""Mistakes that a run ends with, or dies of after launch, in classes: each is found, at its line, and nothing else."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

import hfdsl as hf

SILENT = Path(__file__).parent / "silent"
VALID = Path(__file__).parent / "valid"
NAMES = sorted(file.stem for file in SILENT.glob("*.py"))
MARK = re.compile(r"  # <- (HF\d{3})$", re.MULTILINE)


def areas(folder: Path) -> Counter[str]:
    return Counter(file.stem.partition("_")[0] for file in folder.glob("*.py"))


def test_every_class_has_three_mistakes_and_three_valid_programs() -> None:
    assert min(areas(SILENT).values()) >= 3
    assert all(areas(VALID)[area] >= 3 for area in areas(SILENT))


@pytest.mark.parametrize("name", NAMES)
def test_a_silent_mistake_is_found_where_it_is(name: str) -> None:
    experiment: hf.Experiment = importlib.import_module(f"tests.corpus.silent.{name}").experiment
    lines = (SILENT / f"{name}.py").read_text("utf-8").splitlines()
    [marked] = [(number, match[1]) for number, line in enumerate(lines, 1) if (match := MARK.search(line))]
    report = experiment.check()
    assert [(f.primary.span.line, f.code) for f in report.findings] == [marked], str(report)
