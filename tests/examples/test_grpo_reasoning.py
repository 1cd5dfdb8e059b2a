"""The demo runs from its first line to its last; what it learns in full length is in the README."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly  # tests/rl/training/test_examples.py runs an example each time
def test_the_demo_leaves_a_picture_and_metrics(tmp_path: Path) -> None:
    options = ["--imitation", "5", "--steps", "2", "--backend", "local", "--out", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "examples/grpo_reasoning.py", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    for part in ("check of 'grpo': no findings", "plan of 'grpo'", "step     2", "before GRPO, "):
        assert part in run.stdout
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
    assert all(0 <= record["held_out/score"] <= 1 for record in (records[0], records[2]))
    assert all(0 <= record["outcome/score"] <= 1 and record["actor/reference_kl"] >= 0 for record in records[1:])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
