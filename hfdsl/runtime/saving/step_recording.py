"""The driver's side of a recording: it writes the header and the states, and has ranks record the calls of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hfdsl.errors import WiringError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.saving.loaded_states import check_loaded_states
from hfdsl.runtime.saving.recording import begin


@contextmanager
def recording(
    processes: Processes, plan: Plan, folder: Path, step_number: int, save: Callable[[Path], object]
) -> Iterator[None]:
    """Record the step within the block into a new folder; ``save`` writes the states of the roles.

    Raises:
        CheckpointError, WiringError, HfError: as ``Running.record``.
    """
    backend = processes.usable_backend(plan.name)
    if plan.steps_in_flight:
        text = f"'{plan.name}' has queues, so several steps are in progress at a time; a recording has one"
        raise WiringError("HF751", text)
    check_loaded_states([plan], processes.plans, "a recording")
    begin(folder, plan, step_number, processes.seed, save)
    processes.with_retries(plan.name, lambda: backend.record(str(folder)))
    processes.recording = str(folder), processes.generation
    try:
        yield
    finally:
        processes.recording = None
        if processes.backend is not None and not processes.broken:
            processes.with_retries(plan.name, lambda: backend.record(None))
