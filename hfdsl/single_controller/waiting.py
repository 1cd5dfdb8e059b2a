"""Waiting for workers: values, failures as the errors that they are, and deadlines that say what every rank is doing.

Two ranks run ``update`` with a deadline of 30 s, and rank 1 hangs in a collective. ``ray.get`` gives up after 30 s; the
reference of rank 0 is ready, that of rank 1 is not. So rank 0 "has answered", and the stack of rank 1 is read: frames
above ``hf_call`` are the body's, the outermost names the method that runs. If that is another method, the late call
still waits in the queue of its process; if there is no such frame, it waits for an argument that another call makes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError

from hfdsl.errors import DeadlineError, HfError, LostProcessError, ResourceError, RoleError
from hfdsl.single_controller.stacks import Frame, WatchedProcess, grouped, listed, stacks
from hfdsl.types.numbers import is_duration

DEADLINE_SECONDS: Final = 1800.0
"""Seconds that a blocking call may take unless a group or a call says otherwise; the default of a launch, too."""

SOURCE_FOLDER = Path(__file__).parent
BODY_RUNNERS = ("hf_call", "hf_run", "_construct")
"""The functions of a worker's process that run a body, all of them in this folder."""


def fetch(refs: Sequence[ObjectRef[Any]], timeout: float | None = None) -> list[Any]:
    """The values of references; the first failure as the error that it is, never as one of Ray's.

    Raises:
        GetTimeoutError: where the time is up.
    """
    try:
        return list(ray.get(list(refs), timeout=timeout))
    except GetTimeoutError:
        raise
    except RayTaskError as error:
        for ref in refs:
            ref.future()  # looked at: else Ray would log every other rank's failure again, as unhandled
        raise _hf_error(error) from None
    except RayActorError as error:
        raise LostProcessError("HF806", f"a worker's process is gone: {how_it_ended(str(error))}") from error
    except RayError as error:
        raise LostProcessError("HF806", f"a worker's output is lost ({type(error).__name__})") from error


def succeeded(ref: ObjectRef[Any]) -> bool:
    """Whether what a reference stands for is here, and no error."""
    try:
        ray.get(ref, timeout=0)
    except (RayError, HfError):
        return False
    return True


def how_it_ended(report: str) -> str:
    """Where a process was and how it ended, of what Ray reports of its death.

    Ray knows the exit status of a process that could still answer for it.

    >>> how_it_ended("pid: 12 ip: 10.0.0.1 Worker exits with an exit code 1. The process receives a SIGTERM.")
    'pid 12 on node 10.0.0.1 was ended by SIGTERM'
    """
    facts = {name: match[1] for name, fact in _FACTS.items() if (match := re.search(fact, report))}
    where = " ".join(f"{word} {facts[name]}" for word, name in (("pid", "pid"), ("on node", "ip")) if name in facts)
    if "signal" in facts:
        how = f"was ended by {facts['signal']}"
    elif "status" in facts:
        how = f"ended with exit status {facts['status']}"
    elif "node died" in report.lower() or "node is dead" in report.lower():
        how = "was lost with its node"
    else:
        how = "ended without a word, as after SIGKILL (kill -9, or the kernel for lack of memory), a crash, or os._exit"
    return f"{where} {how}".strip()


_FACTS = {
    "pid": r"\bpid: (\d+)",
    "ip": r"\bip: (\S+)",
    "signal": r"receives a (SIG\w+)",
    "status": r"exit code (\d+)",
}
"""What a report of Ray's says, and where."""


def _hf_error(error: RayTaskError) -> HfError:
    cause: Any = error
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, HfError):
        return cause
    if isinstance(cause, RayActorError):  # of a process whose result this call was to read
        return LostProcessError("HF806", f"a worker's process is gone: {cause}")
    if isinstance(cause, ObjectLostError):  # of a value that this call was to read
        return LostProcessError("HF806", f"a worker's output is lost ({type(cause).__name__})")
    return RoleError("HF806", f"a worker failed outside of a role's method: {error}")


def checked_deadline(seconds: float | None) -> float | None:
    """A deadline as a number of seconds, None for no end; ``ResourceError`` (HF931) for anything else."""
    if seconds is None:
        return None
    if not is_duration(seconds):
        raise ResourceError(
            "HF931", f"a deadline is a positive number of seconds, or None to wait without end; got {seconds!r}"
        )
    return float(seconds)


@dataclass(frozen=True, slots=True)
class Waiter:
    """Waits for a group's calls: for how long, and whose stacks are read when that was too short."""

    seconds: float | None
    processes: tuple[WatchedProcess | None, ...] = ()

    def fetch(
        self, refs: Sequence[ObjectRef[Any]], what: str, first: int = 0, seconds: float | None = None
    ) -> list[Any]:
        """The values of one call's references, those of the ranks from ``first`` on; ``seconds`` instead of its own.

        Raises:
            DeadlineError: HF807, with what every rank is doing.
            RoleError: HF806 where a body raised or a process died.
        """
        seconds = self.seconds if seconds is None else seconds
        try:
            return fetch(refs, seconds)
        except GetTimeoutError:
            raise DeadlineError("HF807", self._late(refs, what, seconds or 0.0)) from None
        except RoleError as error:
            if gone := _gone(refs):
                raise LostProcessError("HF806", f"in {what} {listed(gone)} died: {error.message}") from error.__cause__
            raise

    def within(self, seconds: float | None) -> Waiter:
        """The same group with another deadline."""
        return replace(self, seconds=checked_deadline(seconds))

    def _late(self, refs: Sequence[ObjectRef[Any]], what: str, seconds: float) -> str:
        ready = set(ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)[0])
        late = [rank for rank, ref in enumerate(refs) if ref not in ready]
        seen = stacks({rank: self.processes[rank] for rank in late if rank < len(self.processes)})
        doing = {rank: _doing(seen.get(rank), what) if rank in late else "has answered" for rank in range(len(refs))}
        return (
            f"{what} was not done after {seconds:g} s on {len(late)} of {len(refs)} ranks:\n  "
            + "\n  ".join(grouped(doing))
            + "\nA body may wait for a peer, or needs longer: RayWorkerGroup(..., deadline=...) sets the time for all "
            "calls, register(..., deadline=...) for a method, group.with_deadline(seconds) for one call. "
            "The call is still running."
        )


UNBOUNDED = Waiter(None)
"""For futures that belong to no group."""


def _gone(refs: Sequence[ObjectRef[Any]]) -> list[int]:
    """The ranks whose process died."""
    ready = ray.wait(list(refs), num_returns=len(refs), timeout=0)[0]
    gone = []
    for rank, ref in enumerate(refs):
        if ref in ready:
            try:
                ray.get(ref, timeout=0)
            except RayActorError:
                gone.append(rank)
            except (RayError, HfError):
                continue
    return gone


def _doing(frames: Sequence[Frame] | None, what: str) -> str:
    """What a late rank does, from the frames of its stack, innermost first."""
    if not frames:
        return "gave no stack: its process is stopped, or out of reach"
    ours = [Path(frame.file).parent == SOURCE_FOLDER for frame in frames]
    at = next((at for at, frame in enumerate(frames) if ours[at] and frame.function in BODY_RUNNERS), None)
    if at is None:
        return "waits: an argument of the call is not there yet, or its coroutine awaits something"
    body = [frame for frame, is_ours in zip(frames[:at], ours, strict=False) if not is_ours]
    if not body:
        return "takes the arguments of the call"
    outer, inner = body[-1], body[0]
    before = "" if outer.function in (what.rpartition(".")[2], "<lambda>") else "has not begun: it still "
    within = f", in {inner}" if len(body) > 1 else ""
    return f"{before}runs {outer}{within}"
