"""What plain type checkers say of two programs: nothing of the right one, and of the other what its comments say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests/typing/cases"
Found = dict[str, dict[int, str]]  # file name -> line -> what a checker says there


@cache
def by_mypy() -> Found:
    pytest.importorskip("mypy")
    done = run("-m", "mypy", "--strict", "--no-error-summary", *map(str, sorted(CASES.glob("*.py"))))
    assert done.returncode in (0, 1), done.stderr or done.stdout
    found: Found = {}
    for line in done.stdout.splitlines():
        if match := re.match(r"(.+):(\d+): error: (.*)", line):
            found.setdefault(Path(match[1]).name, {})[int(match[2])] = match[3]
    return found


@cache
def by_pyright() -> Found:
    pytest.importorskip("pyright")
    done = run("-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(CASES))
    found: Found = {}
    for said in json.loads(done.stdout)["generalDiagnostics"]:
        if said["severity"] == "error":
            found.setdefault(Path(said["file"]).name, {})[said["range"]["start"]["line"] + 1] = said["message"]
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )


checkers = pytest.mark.parametrize("checker", [by_mypy, by_pyright])


@checkers
def test_the_right_program_is_clean(checker: Callable[[], Found]) -> None:
    assert checker().get("program.py", {}) == {}


@checkers
def test_every_marked_mistake_is_found_and_nothing_else(checker: Callable[[], Found]) -> None:
    lines = (CASES / "mistakes.py").read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# E:" in line}
    found = checker().get("mistakes.py", {})
    assert len(marked) > 50
    assert {number: lines[number - 1].strip() for number in marked - set(found)} == {}, "missed"
    assert {number: found[number] for number in set(found) - marked} == {}, "said of an honest line"


def test_the_right_program_can_be_imported_and_checked() -> None:
    # The checkers never run it; what they praise must also mean something at run time.
    code = "import program as p; print(*(d.check().errors for d in (p.grpo, p.ppo, p.lists, p.twice)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=CASES, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip  # one command
    assert done.stdout.split() == ["()"] * 4, done.stderr + done.stdout
