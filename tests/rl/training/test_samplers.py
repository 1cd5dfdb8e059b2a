"""Runs with a table ``[sampler]``: GRPO and PPO on two pools, with evaluation, checkpoints and a resumed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.rl.training.config import from_table
from hfdsl.rl.training.loop import train
from hfdsl.runtime.verification import copies
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from tests.rl.workers import tiny

MODEL = {"config": {name: value for name, value in tiny.LLAMA.items() if value is not None}}
TRAINING = {"optimizer": {"learning_rate": 1e-2}}


def table(folder: Path, algorithm: str, **changes: Any) -> dict[str, Any]:
    """A run of tiny models on two pools; the sampler begins with weights of its own."""
    words = folder / "words.jsonl"
    words.write_text("".join(f'{{"word": "{a}{b}"}}\n' for a in "abcdefgh" for b in "abcdefgh"))
    roles: dict[str, Any] = {
        "actor": {"model": MODEL, "generation": {"max_tokens": 6, "engine": "plain"}, "training": TRAINING},
        "sampler": {"model": {**MODEL, "seed": 9}, "generation": "$actor.generation"},
        "reference": {"model": "$actor.model"},
        "critic": {"model": MODEL, "training": TRAINING},
        "reward": {"function": "tests.rl.workers.tiny:share_of_sevens"},
    }
    if not algorithm.startswith("ppo"):
        del roles["critic"]
    source = {"kind": "JsonLines", "path": str(words)}
    return {
        "algorithm": f"hfdsl.rl.dataflows.{algorithm}",
        "deployment": {
            "pools": {
                "trained": {"processes": [2], "gpu": False},
                "engines": {"processes": [1], "gpu": False},
            },
            "roles": {"sampler": {"pool": "engines"}},
            "default": {"pool": "trained"},
        },
        "dims": {"B": 8, "P": 3, "R": 6},
        "steps": 4,
        "output": str(folder / "run"),
        "roles": {"reward": "hfdsl.rl.workers:Verifier"},
        "data": {
            "source": source,
            "tokenizer": {"kind": "Characters", "alphabet": "abcdefgh"},
            "prompt": {"text": "{word}"},
        },
        "evaluation": {"source": source, "every": 2, "held_out": False},
        "checkpoints": {"every": 2},
        **roles,
        **changes,
    }


def updates(run: Path) -> list[dict[str, Any]]:
    """The numbers of every step, without times."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{**record, "time": None} for record in records if "actor/loss" in record]


@pytest.mark.parametrize("algorithm", ["grpo:grpo", "ppo:ppo"])
def test_a_run_with_a_sampler_trains_and_goes_on(tmp_path: Path, algorithm: str) -> None:
    torch.set_num_threads(1)
    train(from_table(table(tmp_path, algorithm)))
    steps = updates(tmp_path / "run")
    assert len(steps) == 4
    assert all(record["actor/engine_gap_max"] < 1e-5 for record in steps)  # it has the actor's weights in every step
    assert sum("held_out/score" in record for record in steps) == 2

    stopped = table(tmp_path, algorithm, output=str(tmp_path / "again"), steps=2)
    train(from_table(stopped))
    train(from_table({**stopped, "steps": 4, "verify_sync": 1}), resume=True)
    assert updates(tmp_path / "again") == steps


def test_dapo_samples_its_rounds_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    update = {
        "algorithm": "hfdsl.rl.dataflows.dapo:dapo_update",
        "rows": 8,
        "options": {"updates": 2},
        "short": "repeat",
    }
    rounds = table(tmp_path, "dapo:dapo_round", options={"group": 4, "longest": 6, "buffer": 2}, update=update, steps=2)
    del rounds["reference"]
    records, compared = list[Any](), list[VerifiedSync]()
    monkeypatch.setattr(copies, "compare", lambda sync, *digests: compared.append(sync))
    train(from_table({**rounds, "verify_sync": 2}), show=records.append)
    assert compared == [VerifiedSync("policy", "actor", "sampler")]  # after the second step
    gaps = [record.values["actor/engine_gap_max"] for record in records if "actor/engine_gap_max" in record.values]
    assert gaps
    assert max(gaps) < 1e-5


def test_a_change_of_the_command_line_makes_a_sampler(tmp_path: Path) -> None:
    without = table(tmp_path, "grpo:grpo")
    del without["sampler"], without["deployment"]["roles"]
    assert "sampler" not in from_table(without).roles
    changes = ["sampler.model=$actor.model", "sampler.generation=$actor.generation", "sampler.batching.rows=2"]
    loaded = from_table(without, changes)
    assert loaded.roles["sampler"].__name__ == "Sampler"
    assert loaded.evaluation is not None
    assert "sampler" in loaded.evaluation.trace().roles


def test_a_file_bounds_what_is_on_its_way(tmp_path: Path) -> None:
    on_its_way = []
    for changes in ({}, {"bucket_bytes": 4096}):
        loaded = from_table(table(tmp_path, "grpo:grpo", **changes))
        (sync,) = loaded.experiment().compile().syncs
        on_its_way.append(sync.peak - sync.needed)
    assert on_its_way[1] <= 4096 < on_its_way[0]
