"""A process without a state is lost before any state has changed: only its calls in this step run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import HfWarning
from tests.runtime.dying_programs import FOLDER, death
from tests.runtime.reading_programs import Actor, Judge, Rows, learn

STEPS = 4


def run(folder: Path, retries: hf.Retries | None, backend: Any) -> tuple[list[float], list[tuple[int, int]]]:
    """The losses of each step, and the steps that lost processes, each with how many were repeated before it."""
    first, second = (hf.ResourcePool([2], use_gpu=False) for _ in range(2))
    plan = learn.compile(hf.Deployment(actor=hf.place(Actor, pool=first), judge=hf.place(Judge, pool=second)))
    with plan.launch(backend, seed=7, worker_env={FOLDER: str(folder)}, retries=retries) as running:
        losses = [running.step(Rows(x=torch.arange(4.0) + step)).loss.value for step in range(STEPS)]
        return losses, [(recovered.step, recovered.repeated_steps) for recovered in running.recoveries]


@pytest.mark.nightly
@pytest.mark.parametrize(("label", "repeated"), [("judge.score", 0), ("actor.update", 2)])
def test_earlier_steps_are_repeated_only_where_a_state_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: Any, label: str, repeated: int
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    expected, _ = run(tmp_path, None, "local")
    (tmp_path / "drawn").unlink()
    death(tmp_path, label, 1, 2)
    with pytest.warns(HfWarning, match="HF840"):
        losses, recoveries = run(tmp_path, hf.Retries(every=None), "ray")
    assert losses == expected
    draws = Counter((tmp_path / "drawn").read_text().split("\n")[:-1])
    assert draws == {f"{step} {rank}": 2 if step < 3 and repeated else 1 for step in range(STEPS) for rank in (0, 1)}
    assert recoveries == [(2, repeated)]
