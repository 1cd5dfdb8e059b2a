"""Every failure of a step names who failed, where and how, and not the peer that noticed it.

A launch with retries fails at every node, one way after another, and each time continues with the same bits. After an
error that ends a run, the tests end the processes that are stuck, and have the run continue as after any loss.

Each of ``WAYS`` is tried at each node in each layout, and over the layouts on each rank; what ``ONCE`` lists in one of
them. A loss without retries has a test of its own. Asynchronous steps: ``test_queued``; lost nodes and relays:
``test_nodes``; constructors, ``load_state`` and functions that hang: ``test_deadlines``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DeadlineError, HfError, LostProcessError, RoleError
from hfdsl.runtime.recovery import steps
from hfdsl.runtime.running import Running
from tests.faults.failing_programs import (
    FOLDER,
    NODES,
    Layout,
    Prompts,
    deployment,
    end_processes,
    ppo,
    set_deadline,
)

PROMPTS = Prompts(x=torch.arange(4.0))

DEADLINE, SHORT_DEADLINE = 120.0, 2.5

LAYOUTS: tuple[Layout, ...] = ("colocated", "split", "merged")

WAYS = ("SIGKILL", "raise", "hang", "SIGSTOP")

KILLED = {"SIGKILL": "as after SIGKILL", "SIGTERM": "ended by SIGTERM", "exit": "without a traceback"}
"""What ends a process, and the words for it."""


class Fault(NamedTuple):
    """A node and a rank that fail, and how."""

    label: str
    rank: int
    how: str


ONCE = [Fault("actor.generate", 0, "SIGTERM"), Fault("critic.values", 1, "exit"), Fault("actor.update", 1, "skip")]
"""Other words for the same, and a rank that skips a collective: in one layout."""


def faults(layout: Layout) -> list[Fault]:
    """Each way at each node; with all layouts also at each rank."""
    shift = LAYOUTS.index(layout)
    return [
        Fault(label, (node + way + shift) % 2, how) for node, label in enumerate(NODES) for way, how in enumerate(WAYS)
    ] + (ONCE if layout == "colocated" else [])


def undisturbed(folder: Path, count: int) -> list[float]:
    """The losses of so many steps of a run in which nothing fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        with ppo.compile(deployment("colocated")).launch("local") as running:
            return [running.step(PROMPTS).loss.value for _ in range(count)]


def check_loss(message: str, fault: Fault, group: str, step: int) -> None:
    """A message names the process that is gone, what it was in and how it ended."""
    label, rank, how = fault
    assert message.startswith(f"a worker's process is gone: rank {rank} of '{group}' died in step {step}, in "), fault
    assert f"'{label}'" in message, fault
    assert "pid " in message, fault
    assert KILLED[how] in message, fault
    assert f"rank {1 - rank} of '{group}' died" not in message, fault


def check_end(error: HfError, fault: Fault, group: str, step: int) -> None:
    """An error names the rank that raised, or that hangs, before those that wait for it."""
    label, rank, how = fault
    message = error.message
    if how == "raise":
        assert isinstance(error, RoleError), fault
        assert message.startswith(f"'{label}' raised on rank {rank} in step {step}: ValueError: bad numbers"), fault
        return
    assert isinstance(error, DeadlineError), fault
    culprit, *peers = [line for line in message.splitlines() if line.startswith("  rank ")]
    if how == "skip":  # it has answered: the peer alone is late
        assert culprit.startswith(f"  rank {1 - rank} of '{group}' (pid "), fault
        assert "waits for other ranks, in total (" in culprit, fault
    else:
        assert culprit.startswith(f"  rank {rank} of '{group}' (pid "), fault
        assert ("gave no stack" if how == "SIGSTOP" else f"runs {label.partition('.')[2]} (") in culprit, fault
        assert all("waits for other ranks" in line for line in peers if f"of '{group}'" in line), fault


def fail_once(running: Running, folder: Path, fault: Fault) -> float:
    """The loss of the next step, in which a rank fails first."""
    label, rank, how = fault
    group = next(group.name for group in running.plan.groups if label.partition(".")[0] in group.roles)
    step, earlier, file = running.steps, len(running.recoveries), folder / f"{label} {rank}"
    if how in KILLED:
        file.write_text(f"once {how}")
    else:
        file.write_text(how)
        if how != "raise":
            set_deadline(running, SHORT_DEADLINE)
        with pytest.raises(HfError) as failure:
            running.step(PROMPTS)
        check_end(failure.value, fault, group, step)
        with pytest.raises(HfError, match="HF808"):
            running.step(PROMPTS)
        file.unlink()
        set_deadline(running, DEADLINE)
        end_processes(running, group)
    loss: float = running.step(PROMPTS).loss.value
    [recovered] = running.recoveries[earlier:]
    if how in KILLED:
        assert recovered.lost == {group: [rank]}, fault
        check_loss(recovered.cause, fault, group, step)
    return loss


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::hfdsl.errors.HfWarning")  # of the losses from which the run continues
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_that_fails_at_every_node_names_who_failed(
    tmp_path: Path, layout: Layout, ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PEER_SECONDS", 0.5)  # processes that are late were not lost
    losses = list[float]()
    with ppo.compile(deployment(layout)).launch(
        "ray", worker_env={FOLDER: str(tmp_path)}, deadline=DEADLINE, retries=hf.Retries()
    ) as running:
        losses.append(running.step(PROMPTS).loss.value)  # processes know each other
        losses += [fail_once(running, tmp_path, fault) for fault in faults(layout)]
    assert losses == undisturbed(tmp_path, len(losses))


def test_without_retries_the_error_names_who_died(tmp_path: Path, ray_cluster: Any) -> None:
    fault = Fault("critic.values", 1, "SIGKILL")
    plan = ppo.compile(deployment("colocated"))
    [group] = plan.groups
    with plan.launch("ray", worker_env={FOLDER: str(tmp_path)}, deadline=DEADLINE) as running:
        running.step(PROMPTS)  # processes know each other
        (tmp_path / f"{fault.label} {fault.rank}").write_text(fault.how)
        with pytest.raises(LostProcessError) as failure:
            running.step(PROMPTS)
    check_loss(failure.value.message, fault, group.name, 1)


@pytest.mark.nightly
def test_a_copy_of_states_that_hangs_ends_at_the_deadline(tmp_path: Path, ray_cluster: Any) -> None:
    (tmp_path / "actor.state 1").write_text("hang")
    plan = ppo.compile(deployment("colocated"))
    late = r"HF807: 'actor.state' was not done after 6 s on 1 of 2 ranks(?s:.*)\n  rank 1 of .*: runs state \("
    with pytest.raises(DeadlineError, match=late):
        plan.launch("ray", worker_env={FOLDER: str(tmp_path)}, deadline=6.0, retries=hf.Retries())
