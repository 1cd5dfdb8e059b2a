"""The mutation tool: which mutants it makes, and which of them it counts as noticed by tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutation.__main__ import interval
from benchmarks.mutation.mutants import mutants

ROOT = Path(__file__).parent.parent.parent
TEXT = """
"Not 1 docstring."
__all__ = ["f"]
LIMIT = 1

def f(n: "int < 3", step: int = 4) -> "1 + 1":
    "Nor 2."
    if n < 2 and not step:
        raise ValueError(f"{n - 1} item{'s' * (n != 1)}")
    return g(n, step) or True

double = lambda n: n + -1

class A:
    def __repr__(self) -> str:
        return "a" + "b"
"""


def test_mutants_change_what_runs_and_leave_wording_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(TEXT, encoding="utf-8")
    assert {(m.function, m.before, m.after) for m in mutants(tmp_path, "a.py")} == {
        ("f", "n < 2 and (not step)", "n < 2 or not step"),
        ("f", "n < 2 and (not step)", "True"),
        ("f", "n < 2 and (not step)", "False"),
        ("f", "n < 2", "n <= 2"),
        ("f", "n < 2", "n >= 2"),
        ("f", "2", "3"),
        ("f", "2", "1"),
        ("f", "not step", "step"),
        ("f", "n - 1", "n + 1"),
        ("f", "1", "2"),
        ("f", "1", "0"),
        ("f", "return g(n, step) or True", "return None"),
        ("f", "g(n, step) or True", "g(n, step) and True"),
        ("f", "g(n, step)", "g(step, n)"),
        ("f", "True", "False"),
        ("", "n + -1", "n - -1"),
        ("", "-1", "1"),
    }


@pytest.mark.nightly
def test_mutants_that_tests_notice_are_killed_and_others_survive() -> None:
    def printed(tests: str) -> str:
        file = "hfdsl/protocols/partitioning.py"
        command = [sys.executable, "-m", "benchmarks.mutation", file, "--sample", "6", "--each", "6", "--examples", "5"]
        process = subprocess.run([*command, "--tests", tests], cwd=ROOT, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    assert "killed 0 of 6: 0.0%" in printed("tests/protocols/test_placement.py"), "nothing there reaches this file"
    assert "| hfdsl/protocols/partitioning.py | 6 | " in printed("tests/protocols/test_partitioning.py")
    assert "killed 0 of" not in printed("tests/protocols/test_partitioning.py")


def test_a_share_lies_in_its_interval() -> None:
    for killed, total in ((0, 10), (7, 10), (10, 10), (700, 1000)):
        low, high = interval(killed, total)
        assert -1e-9 <= low <= killed / total <= high <= 1 + 1e-9
    assert interval(700, 1000)[1] - interval(700, 1000)[0] < 0.06
