"""A relay, or a node with all its processes, is lost: the run continues with the same values, or says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray
import torch

import hfdsl as hf
from hfdsl.errors import HfWarning, LostProcessError
from tests.faults.failing_programs import FOLDER, PADDING, Prompts, deployment, ppo
from tests.faults.lost_nodes import CASES, LostInStream, LostTrainer, log_of
from tests.faults.queued_programs import stream_prompts

ROOT = Path(__file__).parents[2]

PROMPTS = Prompts(x=torch.arange(4.0))


def undisturbed(folder: Path) -> list[float]:
    """The losses of two steps of a run that loses nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        with ppo.compile(deployment("split")).launch("local", seed=5) as running:
            return [running.step(PROMPTS).loss.value for _ in range(2)]


class Script(NamedTuple):
    """The folder that a script was given, and what it printed, a list of lines for each case."""

    place: Path
    lines: Mapping[str, list[str]]


@pytest.fixture(scope="module")
def lost_nodes(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """The script with a cluster of its own, on which all cases run."""
    place = tmp_path_factory.mktemp("nodes")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "tests.faults.lost_nodes", str(place)]
    # The cluster writes its address there, where later tests would look. A socket's path would be too long in tmp_path.
    with tempfile.TemporaryDirectory(prefix="hfdsl_", ignore_cleanup_errors=True) as folder:
        environment["RAY_TMPDIR"] = folder
        run = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
        )
    print(run.stdout, run.stderr)
    lines: dict[str, list[str]] = {}
    for line in run.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "case":
            lines[rest] = []
        elif word in ("metrics", "lost", "error"):
            lines[list(lines)[-1]].append(line)
    return Script(place, lines)


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if isinstance(case, LostTrainer)])
def test_the_node_of_a_trainer_is_lost(tmp_path: Path, name: str, lost_nodes: Script) -> None:
    lines = lost_nodes.lines[name]
    expected = [f"metrics {loss}" for loss in undisturbed(tmp_path)]
    if name == "large":
        first, error, _ = lines
        assert [first] == expected[:1]
        lost = r"error LostProcessError HF840: the copy of all states, made after [01] steps of 'ppo', is lost"
        assert re.match(lost, error)
        assert "Launch again and load a checkpoint: running.load(folder)" in error
    else:
        assert lines == [*expected, "lost actor"]


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if isinstance(case, LostInStream)])
def test_a_node_is_lost_in_a_stream(tmp_path: Path, name: str, lost_nodes: Script) -> None:
    """The stream has the bits of an undisturbed one that decides the same; queues that wait always do."""
    case = CASES[name]
    assert isinstance(case, LostInStream)
    log = None if case.late == "wait" else log_of(lost_nodes.place, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path))
        with case.plan().launch("local", seed=5) as running:
            expected = [f"metrics {metrics.loss.value}" for metrics in running.stream(stream_prompts(), replay=log)]
    group = "engine+judge" if case.call == "judge.score" else "actor"
    assert lost_nodes.lines[name] == [*expected, f"lost {group}"]


def relay_dies(tmp_path: Path, retries: hf.Retries | None) -> list[float]:
    """The losses of two steps, in the second of which the relay is killed."""
    plan = ppo.compile(deployment("split"), optimize=hf.Optimize(relay=True))
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(tmp_path), PADDING: "0"}, retries=retries) as running:
        losses = [running.step(PROMPTS).loss.value]
        backend: Any = running._processes.backend
        for relay in backend._calls.relays.actors:
            ray.kill(relay)
        return [*losses, running.step(PROMPTS).loss.value]


@pytest.mark.nightly
def test_a_relay_that_dies_is_named_and_replaced(tmp_path: Path, ray_cluster: Any) -> None:
    with pytest.raises(LostProcessError, match=r"^HF806: a worker's process is gone: rank 0 of 'the relays' died"):
        relay_dies(tmp_path, None)
    with pytest.warns(HfWarning, match=r"HF840: step 1 of 'ppo' lost rank 0 of 'the relays'; the run continues"):
        assert relay_dies(tmp_path, hf.Retries()) == undisturbed(tmp_path)
