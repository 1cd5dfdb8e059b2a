"""The benchmark of ``check`` runs and shows its rows; its times are for people to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
ROWS = (
    "PPO on 16,384 GPUs",
    "16 findings, as text",
    "16 nodes, clean",
    "32 nodes, clean",
    "time a node, largest to smallest",
    "16 nodes, a size that divides nothing",
    "3 sizes of 3 dims, few that work",
    "32 x 17 x 16 sizes",
    "32 x 17 x 16 sizes, read together",
    "4 requirements over 3 dims",
    "400,000 ranks",
    "hfdsl check FILE, above its import",
)


def printed(*options: str) -> str:
    command = [sys.executable, "benchmarks/check.py", "--sizes", "16", "32", "--times", "1", *options]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_table_has_every_row_with_its_target() -> None:
    head, *lines = printed().splitlines()
    assert head.split() == ["median", "target", "first", "best"]
    for name, line in zip(ROWS, lines, strict=False):
        assert line.startswith(name)


@pytest.mark.nightly
def test_machines_read_the_same_rows() -> None:
    report: dict[str, Any] = json.loads(printed("--json"))
    assert [row["name"] for row in report["rows"]] == list(ROWS)
    assert all(row["median"] > 0 and row["target"] > 0 for row in report["rows"])
    assert sys.version.split()[0] in report["machine"]
