"""A process fails at any node of an asynchronous step: the error names it, and a run that continues has the same bits.

A stage node fails in each of ``WAYS`` in both layouts and on both ranks. A sync is killed in both, and raises, hangs or
is stopped in one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hfdsl as hf
from hfdsl.errors import DeadlineError, HfError, HfWarning, LostProcessError, RoleError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.runtime.recovery import steps
from hfdsl.runtime.running import Running
from tests.faults.failing_programs import FOLDER, B, Prompts, end_processes, set_deadline
from tests.faults.queued_programs import QUEUED_NODES, STREAM_STEPS, queued, queued_deployment, stream_prompts

SAVED = 2
"""The steps after which the run is saved."""


LONG_STEPS = 60
"""At most, the steps of a stream that fails at every node, one way after another."""

WAYS = ("SIGKILL", "raise", "hang", "SIGSTOP")

DEADLINE, SHORT_DEADLINE = 120.0, 2.5


class Fault(NamedTuple):
    """A node and a rank that fail, and how."""

    label: str
    rank: int
    how: str


def faults(split: bool) -> list[Fault]:
    """Each way at each node of a stage, with both layouts also at each rank; a sync is killed in both."""
    return [
        Fault(label, (node + way + split) % 2 if label != "actor.weights" else 0, how)
        for node, label in enumerate(QUEUED_NODES)
        for way, how in enumerate(WAYS)
        if node < 3 or how == "SIGKILL" or (node + way + split) % 2
    ]


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
def test_a_loss_is_named_and_a_resumed_run_has_the_same_bits(
    tmp_path: Path, undisturbed: list[float], ray_cluster: Any
) -> None:
    label, rank, how = "judge.score", 1, "SIGKILL"
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


def check_end(error: HfError, fault: Fault, group: str) -> None:
    """An error names the rank that raised, or that hangs."""
    label, rank, how = fault
    if how == "raise":
        assert isinstance(error, RoleError), fault
        raised = rf"'{label}' raised on rank {rank} in step \d+: ValueError: bad numbers"
        assert re.match(raised, error.message), fault
        return
    assert isinstance(error, DeadlineError), fault
    first, *_ = [line for line in error.message.splitlines() if line.startswith("  rank ")]
    assert first.startswith(f"  rank {rank} of '{group}' (pid "), fault
    assert ("gave no stack" if how == "SIGSTOP" else f"runs {label.partition('.')[2]} (") in first, fault


@dataclass
class FailingStream:
    """A stream that continues after each fault, and what it has given."""

    running: Running
    folder: Path
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin(0)

    def _begin(self, first: int) -> None:
        def batches() -> Iterator[Prompts]:
            for batch in stream_prompts(first, LONG_STEPS):
                self._read += 1
                yield batch

        self._read, self._results = first, self.running.stream(batches())

    def step(self) -> None:
        """The next result."""
        self.losses.append(next(self._results).loss.value)

    def lose(self, fault: Fault, group: str) -> None:
        """Lose a process at a call, and continue."""
        earlier = len(self.running.recoveries)
        (self.folder / f"{fault.label} {fault.rank}").write_text(f"once {fault.how}")
        while len(self.running.recoveries) == earlier:  # engines are ahead of the results
            self.step()
        recovered = self.running.recoveries[-1]
        assert recovered.lost == {group: [fault.rank]}, fault
        assert f"'{fault.label}'" in recovered.cause, fault

    def end(self, fault: Fault, group: str, saved: Path, undisturbed: list[float]) -> None:
        """End by an error, and continue from what was saved before."""
        saved.mkdir()
        self.running.save(saved)
        count, batches_read, earlier = len(self.losses), self._read, len(self.running.recoveries)
        file = self.folder / f"{fault.label} {fault.rank}"
        file.write_text(fault.how)
        if fault.how != "raise":
            set_deadline(self.running, SHORT_DEADLINE)
        with pytest.raises(HfError) as failure:
            self.losses.extend(metrics.loss.value for metrics in self._results)
        check_end(failure.value, fault, group)
        assert len(self.running.recoveries) == earlier, fault
        assert self.losses == undisturbed[: len(self.losses)], fault
        file.unlink()
        set_deadline(self.running, DEADLINE)
        end_processes(self.running, group)
        self.running.load(saved)
        del self.losses[count:]
        self._begin(batches_read)
        self.step()


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::hfdsl.errors.HfWarning")  # of the losses from which the run continues
@pytest.mark.parametrize("split", [True, False])
def test_a_stream_that_fails_at_every_node_names_who_failed_and_has_the_same_bits(
    tmp_path: Path, undisturbed: list[float], ray_cluster: Any, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PEER_SECONDS", 0.5)  # processes that are late were not lost
    folder = tmp_path / "faults"
    folder.mkdir()
    plan = queued.compile(queued_deployment(split=split))
    retries = hf.Retries(every=2)
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(folder)}, deadline=DEADLINE, retries=retries) as running:
        stream = FailingStream(running, folder)
        stream.step()  # processes know each other
        for number, fault in enumerate(faults(split)):
            group = group_of(plan, fault.label)
            if fault.how == "SIGKILL":
                stream.lose(fault, group)
            else:
                stream.end(fault, group, tmp_path / f"saved {number}", undisturbed)
        stream.step()
    assert stream.losses == undisturbed[: len(stream.losses)]


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
