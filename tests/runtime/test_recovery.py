"""A run that loses processes goes on with the values of one that does not; where it cannot, it names the first loss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import HfError, HfWarning, LostProcessError, ResourceError, RoleError
from tests.runtime.dying_programs import FOLDER, death, deployment, learn, look
from tests.runtime.saving_programs import batch

pytestmark = pytest.mark.usefixtures("ray_cluster")  # to start a cluster takes longer than most of these tests

STEPS = 4
CALLS = ("sieve.keep", "actor.draw", "critic.score", "actor.update", "after actor.update")


def run(
    folder: Path, retries: hf.Retries | None, *, own_pools: bool = False, backend: Any = "ray"
) -> tuple[list[Any], Any]:
    """The metrics of each step, the states at the end as another plan sees them, and what was lost."""
    plan = learn.compile(deployment(own_pools=own_pools))
    with plan.launch(backend, seed=7, worker_env={FOLDER: str(folder)}, retries=retries) as running:
        looking = running.also(look.compile(plan.deployment))
        metrics = []
        for step in range(STEPS):
            result = running.step(batch(step))
            metrics.append((result.loss.value, result.weight.value))
            metrics.append(looking.step(batch(100)).x.tensor.tolist())
        return metrics, running.recoveries


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the program gives where nothing is lost: by another backend, which has no recovery."""
    folder = tmp_path_factory.mktemp("none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        return run(folder, None, backend="local")[0]


@pytest.mark.parametrize(
    ("label", "rank", "own_pools", "every"),
    [
        pytest.param(
            label, rank, own_pools, every, marks=[] if label == "critic.score" and rank else [pytest.mark.nightly]
        )
        for number, label in enumerate(CALLS)
        for rank in (0, 1)
        for own_pools, every in [((number + rank) % 2 == 0, 1 if number % 2 == 0 else 3)]
    ],
)
def test_a_lost_process_costs_no_value(
    tmp_path: Path, undisturbed: list[Any], label: str, rank: int, own_pools: bool, every: int
) -> None:
    death(tmp_path, label, rank, 2)
    with pytest.warns(HfWarning, match="HF840"):
        metrics, recoveries = run(tmp_path, hf.Retries(every=every), own_pools=own_pools)
    assert metrics == undisturbed
    (recovered,) = recoveries
    assert recovered.step == 2
    assert any(rank in ranks for ranks in recovered.lost.values())
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_nothing_lost_is_nothing_changed(tmp_path: Path, undisturbed: list[Any]) -> None:
    assert run(tmp_path, hf.Retries(), own_pools=True) == (undisturbed, ())


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("own_pools", [False, True])
def test_random_losses_cost_no_value_and_train_no_row_twice(tmp_path: Path, own_pools: bool) -> None:
    lot, steps = random.Random(23), 10
    plan = learn.compile(deployment(own_pools=own_pools))
    faults = tmp_path / "faults"
    faults.mkdir()

    def metrics(retries: hf.Retries | None) -> list[tuple[float, float]]:
        backend: Any = "local" if retries is None else "ray"
        with plan.launch(backend, seed=3, worker_env={FOLDER: str(faults)}, retries=retries) as running:
            results = []
            for step in range(steps):
                if retries is not None:
                    for label in lot.sample(CALLS, lot.choice((0, 1, 1, 2))):
                        death(faults, label, lot.randint(0, 1), step)
                result = running.step(batch(step))
                results.append((result.loss.value, result.weight.value))
            lost.append(len(running.recoveries))
        return results

    lost: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(faults))
        expected = metrics(None)
    with pytest.warns(HfWarning, match="HF840"):
        assert metrics(hf.Retries(every=lot.choice((1, 3, 7)))) == expected
    assert lost[0] == 0
    assert lost[1] >= steps // 2
    assert not list(faults.iterdir())


@pytest.mark.nightly
def test_two_losses_in_two_steps(tmp_path: Path, undisturbed: list[Any]) -> None:
    death(tmp_path, "actor.draw", 1, 1)
    death(tmp_path, "critic.score", 0, 3)
    with pytest.warns(HfWarning, match="HF840"):
        metrics, recoveries = run(tmp_path, hf.Retries(every=2), own_pools=True)
    assert metrics == undisturbed
    assert [recovered.step for recovered in recoveries] == [1, 3]


@pytest.mark.nightly
def test_a_step_that_always_dies_ends_the_run_with_the_first_loss(tmp_path: Path) -> None:
    death(tmp_path, "critic.score", 1, 1, times=3)
    with pytest.warns(HfWarning, match="HF840"), pytest.raises(LostProcessError, match="HF840") as error:
        run(tmp_path, hf.Retries(attempts=1))
    assert "step 1 of 'learn' lost processes 2 times" in str(error.value)
    assert "hf.Retries(attempts=1)" in str(error.value)
    assert isinstance(error.value.__cause__, HfError)


@pytest.mark.nightly
def test_a_body_that_raises_is_raised_at_once(tmp_path: Path) -> None:
    plan = learn.compile(deployment(own_pools=False))
    with plan.launch("ray", worker_env={FOLDER: str(tmp_path / "missing")}, retries=hf.Retries()) as running:
        (tmp_path / "missing").mkdir()
        (tmp_path / "missing" / "sieve.keep 1 0 0").write_text("no signal")
        with pytest.raises(RoleError, match="invalid literal for int") as error:
            running.step(batch(0))
        assert not isinstance(error.value, LostProcessError)
        assert running.recoveries == ()


@pytest.mark.nightly
def test_without_retries_a_loss_ends_the_run(tmp_path: Path) -> None:
    death(tmp_path, "critic.score", 1, 1)
    with pytest.raises(RoleError, match="HF806"):
        run(tmp_path, None)


@pytest.mark.nightly
def test_a_load_is_where_a_run_goes_back_to(tmp_path: Path, undisturbed: list[Any]) -> None:
    faults, saved = tmp_path / "faults", tmp_path / "saved"
    faults.mkdir()
    saved.mkdir()
    plan = learn.compile(deployment(own_pools=False))
    with plan.launch("ray", seed=7, worker_env={FOLDER: str(faults)}) as running:
        running.step(batch(0))
        running.save(saved)
    with plan.launch("ray", seed=7, worker_env={FOLDER: str(faults)}, retries=hf.Retries(every=5)) as running:
        running.load(saved)
        death(faults, "actor.update", 1, 1)
        with pytest.warns(HfWarning, match="HF840"):
            result = running.step(batch(1))
        assert running.steps == 2
    expected = undisturbed[2]
    assert (result.loss.value, result.weight.value) == expected


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
