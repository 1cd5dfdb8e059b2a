"""Processes that are lost outside of a step, or in one that is recorded: the call is repeated, and changes no value."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import hfdsl as hf
from hfdsl.errors import HfError, HfWarning
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving.recording import read_header
from hfdsl.testing.replaying import replay
from tests.runtime.losing_backend import LosingBackend, Losses
from tests.runtime.renamed import renamed
from tests.testing import replay_programs as p


@contextmanager
def launched(*, retries: bool = True, every: int | None = 1, at: int | None = None) -> Iterator[Running]:
    """A run that loses the actor's processes at a submission."""
    losses = Losses({} if at is None else {at: 0})

    def lowering(plan: Any, *, seed: int, **_: Any) -> LosingBackend:
        return LosingBackend(plan, seed, losses)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HfWarning)
        with p.plan().launch(lowering, seed=5, retries=hf.Retries(every=every) if retries else None) as running:
            yield running


def loss(running: Running) -> float:
    """What a step gives, which depends on the states that all steps before have left."""
    result: p.Loss = running.step(p.batch())
    return result.loss.value


def kill(running: Running) -> None:
    """The actor's processes are gone, and nobody has noticed."""
    backend: Any = running._processes.backend
    backend._gone = "actor"
    for executor in backend._executors["actor"]:
        executor.__dict__.clear()


def also(running: Running, folder: Path) -> float:
    again = running.also(renamed(p.program, "again").compile(running.plan.deployment, {p.B: 8}))
    return loss(again)


def load(running: Running, folder: Path) -> float:
    running.load(folder / "saved")
    return 0.0


def record(running: Running, folder: Path) -> float:
    with running.record(folder / "recorded"):
        return loss(running)


def save(running: Running, folder: Path) -> float:
    (folder / "again").mkdir()
    running.save(folder / "again")
    return 0.0


def run(call: Callable[[Running, Path], float], folder: Path, *, lose: bool) -> list[float]:
    folder.mkdir()
    (folder / "saved").mkdir()
    with launched() as running:
        losses = [loss(running)]
        running.save(folder / "saved")
        losses.append(loss(running))
        if lose:
            kill(running)
        losses += [call(running, folder), loss(running)]
        assert len(running.recoveries) == lose
    return losses


@pytest.mark.parametrize("call", [also, load, record, save])
def test_a_call_between_steps_is_repeated_after_a_loss(call: Callable[[Running, Path], float], tmp_path: Path) -> None:
    assert run(call, tmp_path / "lost", lose=True) == run(call, tmp_path / "quiet", lose=False)


@pytest.mark.parametrize("every", [1, 2, 3, None])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_steps_before_a_load_are_not_repeated_after_a_loss(every: int | None, steps: int, tmp_path: Path) -> None:
    def run(folder: Path, *, lose: bool) -> list[float]:
        folder.mkdir()
        with launched(every=every) as running:
            loss(running)
            running.save(folder)
            losses = [loss(running) for _ in range(steps)]
            running.load(folder)
            losses += [loss(running) for _ in range(steps)]
            if lose:
                kill(running)
            return [*losses, loss(running)]

    undisturbed = run(tmp_path / "quiet", lose=False)
    assert undisturbed[:steps] == undisturbed[steps:-1]
    assert run(tmp_path / "lost", lose=True) == undisturbed


def test_a_saved_plan_is_added_after_a_run_has_gone_back_to_its_files(tmp_path: Path) -> None:
    def run(folder: Path, *, lose: bool) -> list[float]:
        folder.mkdir()
        with launched() as running:
            losses = [loss(running), also(running, folder)]
            running.save(folder)
        with launched() as running:
            running.load(folder)
            running.go_back_to(folder)
            if lose:
                kill(running)
            return [*losses, loss(running), also(running, folder)]

    assert run(tmp_path / "lost", lose=True) == run(tmp_path / "quiet", lose=False)


@pytest.mark.parametrize("at", range(4, 9))
def test_a_recording_of_a_step_that_lost_processes_is_whole(at: int, tmp_path: Path) -> None:
    with launched(at=at) as running:
        loss(running)
        with running.record(tmp_path / "r"):
            loss(running)
        loss(running)
        steps = [recovered.step for recovered in running.recoveries]
    assert steps in ([1], [2])
    calls = [(call["label"], rank) for call in read_header(tmp_path / "r")["calls"] for rank in call["ranks"]]
    outcomes = [replay(tmp_path / "r", label, rank) for label, rank in calls]
    assert [str(outcome) for outcome in outcomes if outcome.failed_then or not outcome.same] == []


def verify(running: Running, folder: Path) -> float:
    running.verify("policy")
    return 0.0


@pytest.mark.parametrize("call", [also, load, record, save, verify])
def test_a_run_that_losses_have_ended_stays_so(call: Callable[[Running, Path], float], tmp_path: Path) -> None:
    """No call replaces the processes of a run that lost them more often than it may."""
    (tmp_path / "saved").mkdir()
    with launched() as running:
        loss(running)
        running.save(tmp_path / "saved")
        backend: Any = running._processes.backend
        at = dict.fromkeys(range(backend._losses.submissions, backend._losses.submissions + 99), 0)
        backend._losses.at = at
        with pytest.raises(HfError, match="HF840"):
            running.step(p.batch())
        recovered = len(running.recoveries)
        at.clear()
        with pytest.raises(HfError, match="HF808"):
            call(running, tmp_path)
        assert len(running.recoveries) == recovered


def test_without_retries_a_loss_between_steps_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    with launched(retries=False) as running:
        running.save(tmp_path / "saved")
        kill(running)
        with pytest.raises((HfError, AttributeError)):
            running.load(tmp_path / "saved")
        with pytest.raises(HfError, match="HF808"):
            running.step(p.batch())


@pytest.mark.nightly
def test_processes_of_ray_that_were_killed_between_steps_are_replaced(tmp_path: Path, ray_cluster: Any) -> None:
    def results(running: Running, folder: Path, kill: Callable[[int], object]) -> list[float]:
        (folder / "saved").mkdir(parents=True)
        losses = [loss(running)]
        running.save(folder / "saved")
        for number, call in enumerate((record, load, also)):
            kill(number % 2)
            losses += [call(running, folder), loss(running)]
        return losses

    with launched() as running:
        undisturbed = results(running, tmp_path / "quiet", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HfWarning)
        with p.plan().launch("ray", seed=5, retries=hf.Retries()) as running:
            calls = cast(Any, running._processes.backend)._calls
            lost = results(running, tmp_path / "lost", lambda rank: ray_cluster.kill(calls.workers["actor"][rank]))
            assert len(running.recoveries) == 3
    assert lost == undisturbed
    for label in ("actor.generate", "actor.update#2"):
        assert replay(tmp_path / "lost/recorded", label, 1).same
