"""A run whose actor samples with fewer ranks than it learns with has the metrics of one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hfdsl.rl.training.config import from_table
from hfdsl.rl.training.loop import train
from tests.rl.training.test_samplers import table, updates


def steps(folder: Path, mesh: dict[str, int]) -> list[dict[str, Any]]:
    folder.mkdir()
    run = table(folder, "grpo:grpo")
    del run["sampler"], run["evaluation"], run["deployment"]["pools"]["engines"]
    run["deployment"]["roles"] = {"actor": {"pool": "trained", "mesh": mesh}}
    train(from_table(run))
    return updates(folder / "run")


def test_grpo_with_fewer_ranks_for_generation_learns_the_same(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    unfolded = steps(tmp_path / "unfolded", {"tp": 2})
    assert len(unfolded) == 4
    folded = steps(tmp_path / "folded", {"tp": 2, "gen_tp": 1})
    timeless = [{name: value for name, value in record.items() if "second" not in name} for record in unfolded]
    assert [{name: record[name] for name in kept} for record, kept in zip(folded, timeless, strict=True)] == timeless
