"""The README shows what hfdsl prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_mistake_in_the_readme_is_shown_as_it_prints() -> None:
    command = ["-m", "hfdsl", "check", "examples/grpo_reasoning.py:experiment", "--set", "B=50"]
    run = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    [shown] = [block for block in (ROOT / "README.md").read_text().split("```") if "error[HF310]" in block]
    printed, _, summary = run.stdout.rpartition("\n\n")
    assert shown.strip() == printed.strip()
    assert summary.startswith("check of 'grpo': 1 error")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
