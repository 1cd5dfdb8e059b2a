"""For every code that a check reports: a program that shows it, at the marked line, and the same program mended.

The codes that are raised by a definition, a launch or a step have theirs in ``test_fixtures_run.py``.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.codes import CODES
from hfdsl.check.findings import Report

FIXTURES = Path(__file__).parent / "fixtures"
BAD = sorted(file.stem for file in FIXTURES.glob("*_bad.py"))
GOOD = sorted(file.stem for file in FIXTURES.glob("*_good.py"))


def report(name: str) -> Report:
    fixture: Any = importlib.import_module(f"tests.check.fixtures.{name}")
    found: Report = fixture.report()
    return found


def test_every_fixture_has_its_twin() -> None:
    assert {name.removesuffix("_bad") for name in BAD} == {name.removesuffix("_good") for name in GOOD}


@pytest.mark.parametrize("name", BAD)
def test_the_failing_program_shows_its_code_at_the_marked_line(name: str) -> None:
    file = FIXTURES / f"{name}.py"
    [marked] = [n for n, line in enumerate(file.read_text("utf-8").splitlines(), 1) if line.endswith("# <-")]
    found = report(name)
    assert found.codes == (name[:5].upper(),), str(found)
    place = found.findings[0].primary.span
    assert (Path(place.file).name, place.line) == (file.name, marked), str(found)
    assert found.ok is (CODES[found.codes[0]].severity == "warning")


@pytest.mark.parametrize("name", BAD)
def test_a_finding_reads_the_same_for_machines(name: str) -> None:
    found = report(name)
    [line] = found.json().splitlines()
    told = json.loads(line)
    assert (told["code"], told["message"]) == (found.findings[0].code, found.findings[0].message)
    assert told["severity"] == CODES[told["code"]].severity
    assert told["primary"]["line"] == found.findings[0].primary.span.line
    assert f"{told['severity']}[{told['code']}]: {told['message']}\n" in str(found)


@pytest.mark.parametrize("name", GOOD)
def test_the_mended_program_is_clean(name: str) -> None:
    found = report(name)
    assert found.findings == (), str(found)
