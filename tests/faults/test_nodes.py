"""A relay, or a node with all its processes, is lost: the run goes on with the same values, or says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

import hfdsl as hf
from hfdsl.errors import HfWarning, LostProcessError
from hfdsl.protocols.queueing import Late
from tests.faults.failing_programs import FOLDER, PADDING, B, Prompts, deployment, ppo
from tests.faults.queued_programs import queued, queued_deployment, stream_prompts

PROMPTS = Prompts(x=torch.arange(4.0))


def undisturbed(folder: Path) -> list[float]:
    """The losses of two steps of a run that loses nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        with ppo.compile(deployment(True)).launch("local") as running:
            return [running.step(PROMPTS).loss.value for _ in range(2)]


def script(*arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A script with a cluster of its own, and the lines that it is run for."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", *arguments]
    # The cluster writes its address there, where later tests would look. A socket's path would be too long in tmp_path.
    with tempfile.TemporaryDirectory(prefix="hfdsl_", ignore_cleanup_errors=True) as folder:
        environment["RAY_TMPDIR"] = folder
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    return run, [line for line in run.stdout.splitlines() if line.startswith(("metrics", "lost", "error"))]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("padding", "copies"), [(0, "node"), (3_000_000, "node"), (3_000_000, "peers")])
def test_the_node_of_a_trainer_is_lost(tmp_path: Path, padding: int, copies: str) -> None:
    """Ray keeps small states with the driver, and large ones on the node of the process that made them."""
    run, lines = script("tests.faults.lost_nodes", str(tmp_path), str(padding), copies)
    expected = [f"metrics {loss}" for loss in undisturbed(tmp_path)]
    if padding and copies == "node":
        first, error = lines
        assert [first] == expected[:1], run.stderr
        lost = r"error LostProcessError HF840: the copy of all states, made after [01] steps of 'ppo', is lost"
        assert re.match(lost, error)
        assert "Launch again and load a checkpoint: running.load(folder)" in error
    else:
        assert lines == expected, run.stderr
        assert "lost ranks 0, 1 of 'actor'; the run goes on" in run.stderr


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("late", "call", "lost"),
    [("wait", "judge.score", "engine+judge"), ("wait", "actor.update", "actor"), ("drop", "actor.update", "actor")],
)
def test_a_node_is_lost_in_a_stream(tmp_path: Path, late: Late, call: str, lost: str) -> None:
    """The stream has the bits of an undisturbed one that decides the same; queues that wait always do."""
    faults, log = tmp_path / "faults", tmp_path / "log"
    faults.mkdir()
    run, lines = script("tests.faults.lost_stream_nodes", str(faults), call, late, str(log))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(faults))
        plan = queued.given(late=late).compile(queued_deployment(), dims={B: 4})
        with plan.launch("local", seed=5) as running:
            results = running.stream(stream_prompts(), replay=None if late == "wait" else log)
            expected = [f"metrics {metrics.loss.value}" for metrics in results]
    assert lines == [*expected, f"lost {lost}"], run.stderr


def relay_dies(tmp_path: Path, retries: hf.Retries | None) -> list[float]:
    """The losses of two steps, in the second of which the relay is killed."""
    plan = ppo.compile(deployment(True), optimize=hf.Optimize(relay=True))
    with plan.launch("ray", worker_env={FOLDER: str(tmp_path), PADDING: "0"}, retries=retries) as running:
        losses = [running.step(PROMPTS).loss.value]
        backend: Any = running._processes.backend
        for relay in backend._calls.relays.actors:
            ray.kill(relay)
        return [*losses, running.step(PROMPTS).loss.value]


@pytest.mark.nightly
def test_a_relay_that_dies_is_named_and_replaced(tmp_path: Path, ray_cluster: Any) -> None:
    with pytest.raises(LostProcessError, match=r"^HF806: a worker's process is gone: rank 0 of 'the relays' died"):
        relay_dies(tmp_path, None)
    with pytest.warns(HfWarning, match=r"HF840: step 1 of 'ppo' lost rank 0 of 'the relays'; the run goes on"):
        assert relay_dies(tmp_path, hf.Retries()) == undisturbed(tmp_path)
