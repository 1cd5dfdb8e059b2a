"""What plain type checkers say of the cases: of the right program nothing, of the others what their comments say."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from tests.typing.checkers import CASES, COMMANDS, ROOT, said_by

BASELINE = tomllib.loads((CASES.parent / "baseline.toml").read_text("utf-8"))
MISTAKEN = ("mistakes.py", "wirings.py")

pytestmark = pytest.mark.xdist_group("checkers")  # one process: each checker is asked once
checkers = pytest.mark.parametrize("checker", COMMANDS)


def mistakes(file: str) -> dict[int, str]:
    """The marked mistakes by line."""
    lines = (CASES / file).read_text("utf-8").splitlines()
    return {number: line.partition("# E: ")[2] for number, line in enumerate(lines, 1) if "# E: " in line}


def test_every_checker_has_its_part_of_the_baseline() -> None:
    assert set(BASELINE) == set(COMMANDS)


@checkers
def test_the_right_program_is_clean(checker: str) -> None:
    assert said_by(checker).get("program.py", {}) == {}


@checkers
def test_every_marked_mistake_is_found_and_nothing_else(checker: str) -> None:
    reported = said_by(checker)
    missed = {mistake for file in MISTAKEN for line, mistake in mistakes(file).items() if line not in reported[file]}
    strays = {
        (file, line): text for file in MISTAKEN for line, text in reported[file].items() if line not in mistakes(file)
    }
    assert sum(len(mistakes(file)) for file in MISTAKEN) > 90
    assert missed == set(BASELINE[checker]), "missed"
    assert strays == {}, "said of an honest line"


def test_the_right_program_can_be_imported_and_checked() -> None:
    # The checkers never run it; what they praise must also mean something at run time.
    code = "import program as p; print(*(d.check().errors for d in (p.grpo, p.ppo, p.lists, p.twice)))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=CASES, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip  # one command
    assert process.stdout.split() == ["()"] * 4, process.stderr + process.stdout
