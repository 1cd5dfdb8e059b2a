"""A run that loses processes continues with the values of one that does not; where it cannot, it names the first loss.

A launch loses processes at every call on every rank, one after another, with all roles in one group and in two. Its
first step loses nothing. A loss without retries: ``tests/faults/test_causes.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import HfError, HfWarning, LostProcessError, ResourceError, RoleError
from hfdsl.runtime.running import Running
from tests.runtime.dying_programs import FOLDER, death, deployment, learn, look
from tests.runtime.saving_programs import batch

pytestmark = pytest.mark.usefixtures("ray_cluster")  # to start a cluster takes longer than most of these tests

CALLS = ("sieve.keep", "actor.draw", "critic.score", "actor.update", "after actor.update")

EVERYWHERE = [(label, rank) for label in CALLS for rank in (0, 1)]

TWICE = {4: ("critic.score", 0), 7: ("sieve.keep", 1)}
"""Losses of a step that has one already, by step."""


def followed(running: Running, looking: Running, step: int) -> tuple[float, float, list[float]]:
    """The metrics of a step, and the state after it as another plan sees it."""
    result = running.step(batch(step))
    return result.loss.value, result.weight.value, looking.step(batch(100)).x.tensor.tolist()


def undisturbed(folder: Path, count: int) -> list[Any]:
    """What so many steps give where nothing is lost: by another backend, which has no recovery."""
    plan = learn.compile(deployment(own_pools=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        with plan.launch("local", seed=7) as running:
            looking = running.also(look.compile(plan.deployment))
            return [followed(running, looking, step) for step in range(count)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("losses", "own_pools", "every"),
    [
        ([("critic.score", 1)], False, 1),
        pytest.param(EVERYWHERE, False, 3, marks=pytest.mark.nightly),
        pytest.param(EVERYWHERE, True, 1, marks=pytest.mark.nightly),
    ],
)
def test_losses_cost_no_value_and_train_no_row_twice(
    tmp_path: Path, losses: list[tuple[str, int]], own_pools: bool, every: int
) -> None:
    """At each call on each rank, and two in a step; also after a load, and none where a body raises."""
    faults, saved = tmp_path / "faults", tmp_path / "saved"
    faults.mkdir()
    saved.mkdir()
    plan = learn.compile(deployment(own_pools=own_pools))
    retries = hf.Retries(every=every)
    with plan.launch("ray", seed=7, worker_env={FOLDER: str(faults)}, retries=retries) as running:
        looking = running.also(look.compile(plan.deployment))
        seen = [followed(running, looking, 0)]
        running.save(saved)
        assert len(running.recoveries) == 0
        for step, (label, rank) in enumerate(losses, start=1):
            earlier = len(running.recoveries)
            death(faults, label, rank, step)
            if step in TWICE:
                death(faults, *TWICE[step], step)
            with pytest.warns(HfWarning, match="HF840"):
                seen.append(followed(running, looking, step))
            recovered = running.recoveries[earlier:]
            assert {result.step for result in recovered} == {step}
            assert any(rank in ranks for result in recovered for ranks in result.lost.values())
            assert any(f"'{label.removeprefix('after ')}'" in result.cause for result in recovered)
        assert seen == undisturbed(tmp_path, len(seen))
        running.load(saved)
        assert running.steps == 1
        death(faults, "actor.update", 1, 1)
        with pytest.warns(HfWarning, match="HF840"):
            assert followed(running, looking, 1) == seen[1]
        assert not list(faults.iterdir())
        earlier = len(running.recoveries)
        (faults / "sieve.keep 1 2 0").write_text("no signal")
        with pytest.raises(RoleError, match="invalid literal for int") as error:
            running.step(batch(2))
        assert not isinstance(error.value, LostProcessError)
        assert len(running.recoveries) == earlier


@pytest.mark.nightly
def test_a_step_that_always_dies_ends_the_run_with_the_first_loss(tmp_path: Path) -> None:
    death(tmp_path, "critic.score", 1, 0, times=3)
    plan = learn.compile(deployment(own_pools=False))
    retries = hf.Retries(attempts=1)
    with (
        plan.launch("ray", seed=7, worker_env={FOLDER: str(tmp_path)}, retries=retries) as running,
        pytest.warns(HfWarning, match="HF840"),
        pytest.raises(LostProcessError, match="HF840") as error,
    ):
        running.step(batch(0))
    assert "step 0 of 'learn' lost processes 2 times" in str(error.value)
    assert "hf.Retries(attempts=1)" in str(error.value)
    assert isinstance(error.value.__cause__, HfError)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": True},
        {"every": 1.5},
        {"wait": 0},
        {"wait": float("nan")},
        {"wait": "1"},
        {"copies": "disk"},
        {"copies": "peers", "every": None},
    ],
)
def test_retries_that_mean_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ResourceError, match="HF841"):
        hf.Retries(**wrong)


def test_a_backend_that_cannot_replace_processes(tmp_path: Path) -> None:
    from hfdsl.runtime.local import LocalBackend

    plan = learn.compile(deployment(own_pools=False))
    with pytest.raises(ResourceError, match="HF841"):
        plan.launch(lambda plan, seed, **_: LocalBackend(plan, seed), retries=hf.Retries())
