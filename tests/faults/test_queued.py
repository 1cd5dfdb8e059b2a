"""A process is lost in an asynchronous step: the error names it, and a resumed run has the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import DeadlineError, HfError, HfWarning, LostProcessError
from hfdsl.protocols.queueing import Late
from tests.faults.failing_programs import FOLDER, B, Prompts, shorten_deadline
from tests.faults.queued_programs import QUEUED_NODES, queued, queued_deployment, stream_prompts

SAVED = 2
"""The steps after which the run is saved."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("none")))
        with queued.compile(queued_deployment()).launch("local", seed=5) as running:
            return [metrics.loss.value for metrics in running.stream(stream_prompts())]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("label", "rank", "how"), [(label, number % 2, "SIGKILL") for number, label in enumerate(QUEUED_NODES[:2])]
)
def test_a_loss_is_named_and_a_resumed_run_has_the_same_bits(
    tmp_path: Path, undisturbed: list[float], ray_cluster: Any, label: str, rank: int, how: str
) -> None:
    faults, saved = tmp_path / "faults", tmp_path / "saved"
    faults.mkdir()
    saved.mkdir()
    plan = queued.compile(queued_deployment())
    losses, begun = list[float](), list[int]()

    def counted() -> Iterator[Prompts]:
        for step, batch in enumerate(stream_prompts()):
            begun.append(step)
            yield batch

    with plan.launch("ray", seed=5, worker_env={FOLDER: str(faults)}, deadline=120.0) as running:
        group = next(group.name for group in plan.groups if label.partition(".")[0] in group.roles)
        results = running.stream(counted())
        losses += [next(results).loss.value for _ in range(SAVED)]
        running.save(saved)
        first = len(begun)
        (faults / f"{label} {rank}").write_text(how)
        with pytest.raises(LostProcessError) as failure:
            losses.extend(metrics.loss.value for metrics in results)
        assert f"rank {rank} of '{group}' died in step " in failure.value.message
        assert f"'{label}'" in failure.value.message
        assert f"rank {1 - rank} of '{group}' died" not in failure.value.message
        with pytest.raises(HfError, match="HF808"):
            next(iter(running.stream(stream_prompts())))
    assert losses == undisturbed[: len(losses)]
    (faults / f"{label} {rank}").unlink()
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(faults)}, deadline=120.0) as running:
        running.load(saved)
        resumed = [metrics.loss.value for metrics in running.stream(stream_prompts(first))]
    assert resumed == undisturbed[SAVED:]


@pytest.mark.nightly
@pytest.mark.parametrize(("late", "label"), [("wait", "judge.score"), ("drop", "actor.update")])
def test_a_stream_goes_on_with_the_same_bits(tmp_path: Path, ray_cluster: Any, late: Late, label: str) -> None:
    faults, log = tmp_path / "faults", tmp_path / "log"
    faults.mkdir()
    plan = queued.given(late=late).compile(queued_deployment(), dims={B: 4})
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(faults)}, deadline=60.0, retries=hf.Retries()) as running:
        results = running.stream(stream_prompts(), log=log)
        losses = [next(results).loss.value for _ in range(SAVED)]
        (faults / f"{label} 1").write_text("once SIGKILL")
        with pytest.warns(HfWarning, match="HF840"):
            losses += [metrics.loss.value for metrics in results]
        assert len(running.recoveries) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(faults))
        with plan.launch("local", seed=5) as running:
            assert losses == [metrics.loss.value for metrics in running.stream(stream_prompts(), replay=log)]


@pytest.mark.nightly
def test_a_stopped_process_of_a_stage_is_named(tmp_path: Path, ray_cluster: Any) -> None:
    plan = queued.compile(queued_deployment())
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(tmp_path)}, deadline=120.0) as running:
        stream = running.stream(stream_prompts())
        next(stream)
        shorten_deadline(running, 5.0)
        (tmp_path / "judge.score 1").write_text("SIGSTOP")
        with pytest.raises(DeadlineError, match="HF807") as failure:
            list(stream)
        first, *_ = [line for line in failure.value.message.splitlines() if line.startswith("  rank ")]
        assert first.startswith("  rank 1 of 'engine+judge'")
        assert "gave no stack" in first
