"""Restoring: a launched plan continues with the states of a folder, at once or after a loss of processes."""

from __future__ import annotations

from pathlib import Path

from hfdsl.plan.plan import Plan
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.queues.running_stream import RunningStream
from hfdsl.runtime.recovery.steps import Recovery
from hfdsl.runtime.saving.driver import read_manifest


def load_states(processes: Processes, stream: RunningStream, plan: Plan, folder: Path) -> None:
    """Load the states of a folder into the workers, with the step counts and the steps in progress.

    Raises:
        CheckpointError, RoleError, HfError: as ``Running.load``.
    """
    backend = processes.usable_backend(plan.name)
    manifest = read_manifest(folder, plan.deployment, processes.seed)
    place = str(folder.resolve())
    with processes.alone("a load"):
        try:
            processes.with_retries(plan.name, lambda: backend.load(place, manifest.roles))
        except BaseException as error:
            processes.broken = f"a load of '{folder}' ({type(error).__name__})"
            raise
    stream.forget()  # what was in flight belongs to the states before
    backend.driver.load(place, {}, ())
    processes.syncs.forget()
    step_counts = processes.steps
    processes.restored = {name: steps for name, steps in manifest.steps.items() if name not in step_counts}
    step_counts |= {name: manifest.steps.get(name, 0) for name in step_counts}
    if manifest.stream is not None:
        stream.load(backend, place, manifest.stream)
    if processes.recovery is not None:
        processes.recovery.begin(lambda: backend.load(place, manifest.roles), stream.loads(place, manifest))


def go_back_to(processes: Processes, recovery: Recovery, stream: RunningStream, plan: Plan, folder: Path) -> None:
    """After a loss of processes, load this folder instead of an older copy.

    Raises:
        CheckpointError: as ``Running.go_back_to``.
    """
    backend = processes.usable_backend(plan.name)
    place = folder.resolve()
    manifest = read_manifest(place, plan.deployment, processes.seed)
    recovery.go_back_to(
        manifest.steps, lambda: backend.load(str(place), manifest.roles), stream.loads(str(place), manifest)
    )
