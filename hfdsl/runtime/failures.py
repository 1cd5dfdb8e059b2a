"""The process that failed, where and why: the dead one, not the peer that noticed; and the state of late ranks.

A worked example. Two ranks of ``reward`` add up their scores in a collective, and the kernel kills rank 1::

    rank 0                                      rank 1                driver
    all_gather, waits for rank 1                killed
    the connection is closed: it raises
                                                                      gets rank 0's error first
                                                                      Ray's table says: rank 1 is dead
                                                                      raises: rank 1 died, rank 0 noticed

Why it is right. *Not the innocent*: an error is looked into where a process is gone, or where it is one that a broken
connection causes; if a process of the run is dead by then, or dies within ``SEEN_SECONDS``, that is the cause. A
body's other errors are raised at once. *The call that it died in*, not the one before, whose reply it took along: a
process notes each call that it begins (``rank.begun_calls``). *What late ranks do* is read from outside (``stacks``),
so neither a stopped process nor an endless body holds it up; those that only wait for peers are listed last. They still
wait when their stacks are read: a wait for a peer lasts ``PATIENCE_SECONDS`` longer than the driver's own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hfdsl.errors import LostProcessError, RoleError
from hfdsl.plan.payloads import Process
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.rank.role_errors import raised_by_body
from hfdsl.runtime.recovery.called_rows import CalledRows
from hfdsl.runtime.recovery.deaths import Death
from hfdsl.single_controller.ray_internals import actor_id, actors
from hfdsl.single_controller.stacks import Frame, WatchedProcess, stacks
from hfdsl.single_controller.waiting import how_it_ended

SEEN_SECONDS, POLL_SECONDS = 2.0, 0.05
"""The time in which Ray notices that a process is gone after another one, and the polling interval."""

NODE_SECONDS = 20.0
"""The time in which Ray notices that a node is gone, with one of its processes."""

PATIENCE_SECONDS = 60.0
"""The time for which a rank waits for its peers beyond the driver's deadline.

Otherwise a peer could give up while the driver reads the stacks, and be found elsewhere, or its error could arrive
first. It is longer than reading stacks takes on a busy machine (``stacks.READ_SECONDS``).
"""

BODY_CALLERS = {
    "executor.py": ("_call_body",),
    "role_workers.py": ("build_worker", "_load_state"),
    "state_files.py": ("worker_state", "load_worker"),
}
"""The functions of this folder that call the user's code."""

WAITING = (
    "protocols/collectives.py",
    "runtime/rank/process_groups.py",
    "torch/distributed/",
    "runtime/transports/broadcast.py",
    "runtime/weights/exchange.py",
)
"""The files whose functions wait for other ranks."""


class Called(NamedTuple):
    """A submitted call of a rank: its labels, the number of the run's step if it belongs to one, and the time.

    Of a step, also the name of its plan, and the rows that ranks are called with.
    """

    labels: str
    step: int | None
    time: float
    plan: str = ""
    rows: CalledRows | None = None

    @classmethod
    def of(cls, submission: Submission) -> Called:
        """A call submitted now."""
        labels = " and ".join(f"'{part.label}'" for part in submission.segment.steps)
        return cls(labels, submission.call.step, time.monotonic(), submission.call.plan, submission.rows)

    def death(self, process: Process, end: str) -> Death:
        """The death of a process within this call."""
        group, rank = process
        step = None if self.step is None else (self.plan, self.step)
        return Death(
            group=group,
            rank=rank,
            labels=self.labels,
            step=step,
            end=end,
            rows="" if self.rows is None else self.rows.of(rank),
        )


def lost_process(
    error: RoleError, workers: Mapping[str, Sequence[Any]], running: Mapping[Process, Called]
) -> LostProcessError | None:
    """The error that names the dead processes behind another error; None if that error is the cause itself.

    ``running`` are the calls that processes had not ended.
    """
    if raised_by_body(error):
        return None
    dead = _dead(workers, NODE_SECONDS if isinstance(error, LostProcessError) else SEEN_SECONDS)
    if not dead:
        return None
    parts, deaths = [], []
    for (group, rank), report in dead.items():
        call = running.get((group, rank))
        when = ""
        if call is not None:
            seconds = time.monotonic() - call.time
            step = "" if call.step is None else f" in step {call.step},"
            when = f"{step} in {call.labels}, {seconds:.1f} s after it was called"
            deaths.append(call.death((group, rank), report))
        parts.append(f"rank {rank} of '{group}' died{when}: {report}")
    text = "; ".join(parts)
    waiting = [process for process, call in running.items() if process not in dead and call.labels in text]
    if waiting:
        names = [f"rank {rank} of '{group}'" for group, rank in sorted(waiting)]
        text += f"\n  waiting for it: {', '.join(names)}"
    if not isinstance(error, LostProcessError):
        text += f"\n  noticed by: {error.message.splitlines()[0]}"
    lost = LostProcessError("HF806", f"a worker's process is gone: {text}")
    lost.deaths = tuple(deaths)
    return lost


def _dead(workers: Mapping[str, Sequence[Any]], wait: float) -> dict[Process, str]:
    """The processes that are gone, and how each ended, once Ray reports one within ``wait`` seconds."""
    by_id = {
        actor_id(worker).hex(): (group, rank)
        for group, group_workers in workers.items()
        for rank, worker in enumerate(group_workers)
    }
    until = time.monotonic() + wait
    while True:
        states = {by_id[key]: state for key, state in actors().items() if key in by_id}
        dead = {process: _report(state) for process, state in sorted(states.items()) if state.get("State") == "DEAD"}
        if dead or time.monotonic() > until:
            return dead
        time.sleep(POLL_SECONDS)


def _report(state: Mapping[str, Any]) -> str:
    place = f"pid: {state.get('Pid')} ip: {state.get('Address', {}).get('IPAddress')}"
    return how_it_ended(f"{place} {state.get('DeathCause', '')}")


# -- late ranks --------------------------------------------------------------------------------------------------------


def late_ranks(processes: Mapping[Process, WatchedProcess | None], running: Mapping[Process, Called]) -> str:
    """The activity of each rank that has not replied, one line each: unreachable ranks first, waiting ones last.

    Of those that wait, the one that was called first comes first: later ones may wait for what it does not return.

    ``running`` are the calls that processes had not ended; where none is known, all processes are looked at.
    """
    names = [process for process in processes if process in running or not running]
    frames = stacks({index: processes[name] for index, name in enumerate(names)})
    lines = []
    for index, name in enumerate(names):
        place, doing = _doing(frames.get(index))
        if doing is not None:
            call = running.get(name)
            since = call.time if call is not None else math.inf
            lines.append((place, since, name, _process_in_words(name, processes[name], call), doing))
    return "".join(f"\n  {who}: {doing}" for _, _, _, who, doing in sorted(lines))


def _process_in_words(name: Process, process: WatchedProcess | None, call: Called | None) -> str:
    group, rank = name
    where = f" (pid {process.pid} on node {process.node[:8]})" if process is not None else ""
    since = f" in {call.labels}, called {time.monotonic() - call.time:.0f} s ago" if call is not None else ""
    return f"rank {rank} of '{group}'{where}{since}"


def _doing(frames: Sequence[Frame] | None) -> tuple[int, str | None]:
    """The activity of a rank, from its stack frames, innermost first, after its rank in the report; None for none."""
    if not frames:
        return 0, "gave no stack: its process is stopped, or out of reach"
    callers = [frame.function in BODY_CALLERS.get(Path(frame.file).name, ()) for frame in frames]
    if not any(callers):
        return 3, None
    body = frames[: callers.index(True)]
    if not body:
        return 1, "is about to begin or to end its call"
    working = [frame for frame in body if not _waits(frame)]
    outer = working[-1] if working else body[-1]
    if any(map(_waits, body)):
        return 2, f"waits for other ranks, in {working[0] if working else outer}"
    return 1, f"runs {outer}" + (f", in {body[0]}" if body[0] != outer else "")


def _waits(frame: Frame) -> bool:
    return any(part in frame.file.replace("\\", "/") for part in WAITING)
