"""A process fails at any node of an asynchronous step: the error names it, and a run that goes on has the same bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import DeadlineError, HfError, HfWarning, LostProcessError, RoleError
from hfdsl.plan.compiled import CompiledPlan
from tests.faults.failing_programs import FOLDER, B, Prompts, shorten_deadline
from tests.faults.queued_programs import QUEUED_NODES, STREAM_STEPS, queued, queued_deployment, stream_prompts

SAVED = 2
"""The steps after which the run is saved."""


LONG_STEPS = 24
"""The steps of a stream that loses a process at every node, one after another."""

WAYS = ("raise", "hang", "SIGSTOP")

ENDS = [
    pytest.param(label, (node + way) % 2 if label != "actor.weights" else 0, how, (node + way) % 4 == 0)
    for node, label in enumerate(QUEUED_NODES)
    for way, how in enumerate(WAYS)
    if node < 3 or way == node - 2  # a sync once each
]
"""Each way at each node of a stage, with half of the ranks; most where roles share processes: these start faster."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a long stream, with which shorter ones begin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("none")))
        with queued.compile(queued_deployment()).launch("local", seed=5) as running:
            return [metrics.loss.value for metrics in running.stream(stream_prompts(steps=LONG_STEPS))]


def group_of(plan: CompiledPlan, label: str) -> str:
    """The process group of a call."""
    return next(group.name for group in plan.groups if label.partition(".")[0] in group.roles)


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
        group = group_of(plan, label)
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
    assert resumed == undisturbed[SAVED:STREAM_STEPS]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::hfdsl.errors.HfWarning")  # of the losses from which the run goes on
@pytest.mark.parametrize("split", [True, False])
def test_a_stream_that_loses_a_process_at_every_node_has_the_same_bits(
    tmp_path: Path, undisturbed: list[float], ray_cluster: Any, split: bool
) -> None:
    plan = queued.compile(queued_deployment(split=split))
    retries = hf.Retries(every=2)
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(tmp_path)}, deadline=120.0, retries=retries) as running:
        results = running.stream(stream_prompts(steps=LONG_STEPS))
        losses = [next(results).loss.value]
        for node, label in enumerate(QUEUED_NODES):
            rank = node % 2 if label != "actor.weights" else 0
            (tmp_path / f"{label} {rank}").write_text("once SIGKILL")
            while len(running.recoveries) == node:  # engines are ahead of the results
                losses.append(next(results).loss.value)
            recovered = running.recoveries[-1]
            assert recovered.lost == {group_of(plan, label): [rank]}
            assert f"'{label}'" in recovered.cause
        losses += [metrics.loss.value for metrics in results]
        assert len(running.recoveries) == len(QUEUED_NODES)
    assert losses == undisturbed


@pytest.mark.nightly
def test_a_stream_that_drops_rows_goes_on_with_the_same_bits(tmp_path: Path, ray_cluster: Any) -> None:
    faults, log = tmp_path / "faults", tmp_path / "log"
    faults.mkdir()
    plan = queued.given(late="drop").compile(queued_deployment(), dims={B: 4})
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(faults)}, deadline=60.0, retries=hf.Retries()) as running:
        results = running.stream(stream_prompts(), log=log)
        losses = [next(results).loss.value for _ in range(SAVED)]
        (faults / "actor.update 1").write_text("once SIGKILL")
        with pytest.warns(HfWarning, match="HF840"):
            losses += [metrics.loss.value for metrics in results]
        assert len(running.recoveries) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(faults))
        with plan.launch("local", seed=5) as running:
            assert losses == [metrics.loss.value for metrics in running.stream(stream_prompts(), replay=log)]


@pytest.mark.nightly
@pytest.mark.parametrize(("label", "rank", "how", "split"), ENDS)
def test_who_raises_hangs_or_is_stopped_in_a_stream_is_named(
    tmp_path: Path, undisturbed: list[float], ray_cluster: Any, label: str, rank: int, how: str, split: bool
) -> None:
    plan, losses = queued.compile(queued_deployment(split=split)), list[float]()
    with plan.launch(
        "ray", seed=5, worker_env={FOLDER: str(tmp_path)}, deadline=120.0, retries=hf.Retries()
    ) as running:
        results = running.stream(stream_prompts())
        losses.append(next(results).loss.value)  # processes know each other
        if how != "raise":
            shorten_deadline(running, 5.0)
        file = tmp_path / f"{label} {rank}"
        file.write_text(how)
        with pytest.raises(HfError) as failure:
            losses.extend(metrics.loss.value for metrics in results)
        file.unlink()
        assert not running.recoveries
    assert losses == undisturbed[: len(losses)]
    message = failure.value.message
    if how == "raise":
        assert isinstance(failure.value, RoleError)
        assert re.match(rf"'{label}' raised on rank {rank} in step \d+: ValueError: bad numbers", message)
        return
    assert isinstance(failure.value, DeadlineError)
    first, *_ = [line for line in message.splitlines() if line.startswith("  rank ")]
    assert first.startswith(f"  rank {rank} of '{group_of(plan, label)}' (pid ")
    assert ("gave no stack" if how == "SIGSTOP" else f"runs {label.partition('.')[2]} (") in first
