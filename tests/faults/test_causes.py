"""Every failure of a step names who failed, where and how, and not the peer that noticed it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DeadlineError, HfError, LostProcessError, RoleError
from tests.faults.failing_programs import FOLDER, NODES, Prompts, deployment, ppo, shorten_deadline

PROMPTS = Prompts(x=torch.arange(4.0))

DEADLINE = 120.0

SAMPLE = (("critic.values", "SIGKILL"), ("actor.generate", "SIGTERM"))
"""What `make test` shows; all others are for the nightly run."""

WAYS = ("SIGKILL", "SIGTERM", "exit", "raise", "SIGSTOP", "hang", "skip")

ONCE = {"SIGTERM": "actor.generate", "exit": "critic.values", "skip": "actor.update"}
"""Other words for the same, and a rank that skips a collective: at one node each."""

CASES = [
    pytest.param(label, rank, how, split, marks=[] if (label, how) in SAMPLE else [pytest.mark.nightly])
    for node, label in enumerate(NODES)
    for way, how in enumerate(WAYS)
    if ONCE.get(how, label) == label
    for rank, split in [((node + way) % 2, (node + way) % 4 > 1)]
]
"""Each other way at each node, and with it half of the ranks and of the deployments."""


@pytest.mark.parametrize(("label", "rank", "how", "split"), CASES)
def test_who_failed_is_named(tmp_path: Path, label: str, rank: int, how: str, split: bool, ray_cluster: Any) -> None:
    hangs = how in ("SIGSTOP", "hang", "skip")
    plan = ppo.compile(deployment(split))
    role, _, method = label.partition(".")
    with plan.launch("ray", worker_env={FOLDER: str(tmp_path)}, deadline=DEADLINE) as running:
        group = next(group.name for group in running.plan.groups if role in group.roles)
        running.step(PROMPTS)  # processes know each other
        if hangs:
            shorten_deadline(running, 5.0)
        (tmp_path / f"{label} {rank}").write_text(how)
        start = time.monotonic()
        with pytest.raises(HfError) as failure:
            running.step(PROMPTS)
        took = time.monotonic() - start
        (tmp_path / f"{label} {rank}").unlink()
    message = failure.value.message
    if how == "raise":
        assert isinstance(failure.value, RoleError)
        assert message.startswith(f"'{label}' raised on rank {rank} in step 1: ValueError: bad numbers")
    elif not hangs:
        assert isinstance(failure.value, LostProcessError)
        assert message.startswith(f"a worker's process is gone: rank {rank} of '{group}' died in step 1, in ")
        assert f"'{label}'" in message
        assert "pid " in message
        assert {"SIGKILL": "as after SIGKILL", "SIGTERM": "ended by SIGTERM", "exit": "without a word"}[how] in message
        assert f"rank {1 - rank} of '{group}' died" not in message
        assert took < DEADLINE / 2
    else:
        assert isinstance(failure.value, DeadlineError)
        lines = message.splitlines()
        culprit, *peers = [line for line in lines if line.startswith("  rank ")]
        if how == "skip":  # it has answered: the peer alone is late
            assert culprit.startswith(f"  rank {1 - rank} of '{group}' (pid ")
            assert "waits for other ranks, in total (" in culprit
        else:
            assert culprit.startswith(f"  rank {rank} of '{group}' (pid ")
            assert ("gave no stack" if how == "SIGSTOP" else f"runs {method} (") in culprit
            assert all("waits for other ranks" in line for line in peers if f"of '{group}'" in line)


@pytest.mark.nightly
def test_a_copy_of_states_that_hangs_ends_at_the_deadline(tmp_path: Path, ray_cluster: Any) -> None:
    (tmp_path / "actor.state 1").write_text("hang")
    plan = ppo.compile(deployment(False))
    late = r"HF807: 'actor.state' was not done after 6 s on 1 of 2 ranks(?s:.*)\n  rank 1 of .*: runs state \("
    with pytest.raises(DeadlineError, match=late):
        plan.launch("ray", worker_env={FOLDER: str(tmp_path)}, deadline=6.0, retries=hf.Retries())
