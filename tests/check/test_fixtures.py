"""For every code that a check reports: a program that shows it, at the marked line, and the same program mended.

The codes that are raised by a definition, a launch or a step have theirs in ``test_fixtures_run.py``.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.codes import CODES
from hfdsl.check.report import Report
from tests.check.fixture_programs import FIXTURES, FIXTURES_RUN, marked_line, mended, mended_folder, names

NAMES = names(FIXTURES)
ROOT = Path(__file__).parents[2]


@cache
def report(name: str) -> Report:
    """The report of the failing program, for all tests that only read it."""
    return checked(name)


def checked(name: str) -> Report:
    """A new report of the failing program."""
    fixture: Any = importlib.import_module(f"tests.check.fixtures.{name}")
    report_of_fixture: Report = fixture.report()
    return report_of_fixture


def report_of_mended(name: str) -> Report:
    """The report of the mended program, which is imported from a file of its own."""
    spec = importlib.util.spec_from_file_location(f"mended_{name}", mended_folder(FIXTURES) / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    fixture: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = fixture  # annotations are text: they are looked up there
    spec.loader.exec_module(fixture)
    report_of_fixture: Report = fixture.report()
    return report_of_fixture


@pytest.mark.parametrize("file", [FIXTURES / f"{name}.py" for name in NAMES], ids=NAMES)
def test_a_fixture_marks_one_line_and_its_mend(file: Path) -> None:
    text = file.read_text("utf-8")
    assert marked_line(file)
    assert ast.dump(ast.parse(mended(text))) != ast.dump(ast.parse(text))
    assert re.search("# (bad|good|<-)", mended(text)) is None


def test_marks_are_read() -> None:
    text = "# good: a = 2\na = 1  # bad\nif a:\n    # good:     b\n    b = a  # <- bad\n    c = a  # <-\n# bad: none\n"
    assert mended(text) == "a = 2\nif a:\n        b\n    c = a\n# bad: none\n"


@pytest.mark.parametrize("folder", [FIXTURES, FIXTURES_RUN], ids=["checked", "run"])
def test_the_mended_programs_have_no_lint(folder: Path) -> None:
    pytest.importorskip("ruff")
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    command += ["--ignore", "D,I,INP,T20", str(mended_folder(folder))]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_failing_program_shows_its_code_at_the_marked_line(name: str) -> None:
    file, failing = FIXTURES / f"{name}.py", report(name)
    assert failing.codes == (name[:5].upper(),), str(failing)
    place = failing.findings[0].primary.span
    assert (Path(place.file).name, place.line) == (file.name, marked_line(file)), str(failing)
    assert failing.ok is (CODES[failing.codes[0]].severity == "warning")


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_reads_the_same_for_machines(name: str) -> None:
    failing = report(name)
    lines = map(json.loads, failing.json().splitlines())
    [entry] = [line for line in lines if "summary" not in line]  # of the queues, where there are some
    assert (entry["code"], entry["message"]) == (failing.findings[0].code, failing.findings[0].message)
    assert entry["severity"] == CODES[entry["code"]].severity
    assert entry["primary"]["line"] == failing.findings[0].primary.span.line
    assert f"{entry['severity']}[{entry['code']}]: {entry['message']}\n" in str(failing)


@pytest.mark.parametrize("name", NAMES)
def test_the_mended_program_is_clean(name: str) -> None:
    clean = report_of_mended(name)
    assert clean.findings == (), str(clean)
