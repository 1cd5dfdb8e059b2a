"""The README is short, and its picture is that of its program; tests/docs runs its blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfdsl.tools.cli import main
from tests.docs.programs import programs

ROOT = Path(__file__).parent.parent


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 180


def test_the_picture_is_the_plan_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(programs()["train.py"], "utf-8")
    assert main(["draw", "train.py", "-o", "plan.svg"]) == 0
    assert (tmp_path / "plan.svg").read_bytes() == (ROOT / "docs/plan.svg").read_bytes()
