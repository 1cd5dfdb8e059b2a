"""Waiting for workers: values, failures with their original errors, and deadlines that report what each rank is doing.

Two ranks run ``update`` with a deadline of 30 s, and rank 1 hangs in a collective. ``ray.get`` gives up after 30 s; the
reference of rank 0 is ready, that of rank 1 is not. So rank 0 "has answered", and the stack of rank 1 is read: frames
above ``hf_call`` are the body's, and the outermost names the running method. If that is another method, the late call
is still in the queue of its process; if there is no such frame, it waits for an argument from another call.
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
from hfdsl.single_controller.stacks import Frame, WatchedProcess, grouped, ranks_in_words, stacks
from hfdsl.types.numbers import is_duration

DEADLINE_SECONDS: Final = 1800.0
"""The default deadline of blocking calls, and of a launch, in seconds."""

SOURCE_FOLDER = Path(__file__).parent
BODY_RUNNERS = ("hf_call", "hf_run", "_construct")
"""The functions of a worker's process that run a body, all of them in this folder."""


def fetch(refs: Sequence[ObjectRef[Any]], timeout: float | None = None) -> list[Any]:
    """The values of references; the first failure raises its original error, never one of Ray's.

    Raises:
        GetTimeoutError: after the timeout.
    """
    try:
        return list(ray.get(list(refs), timeout=timeout))
    except GetTimeoutError:
        raise
    except RayTaskError as error:
        for ref in refs:
            ref.future()  # otherwise Ray would log every other rank's failure again, as unhandled
        raise _hf_error(error) from None
    except RayActorError as error:
        raise LostProcessError("HF806", f"a worker's process is gone: {how_it_ended(str(error))}") from error
    except RayError as error:
        raise LostProcessError("HF806", f"a worker's output is lost ({type(error).__name__})") from error


def succeeded(ref: ObjectRef[Any]) -> bool:
    """Whether the value of a reference is available, and not an error."""
    try:
        ray.get(ref, timeout=0)
    except (RayError, HfError):
        return False
    return True


def how_it_ended(report: str) -> str:
    """The place and the end of a process, from Ray's report of its death.

    Ray knows the exit status of a process that could still report it.

    >>> how_it_ended("pid: 12 ip: 10.0.0.1 Worker exits with an exit code 1. The process receives a SIGTERM.")
    'pid 12 on node 10.0.0.1 was ended by SIGTERM'
    """
    facts = {name: match[1] for name, fact in _FACTS.items() if (match := re.search(fact, report))}
    place = " ".join(f"{word} {facts[name]}" for word, name in (("pid", "pid"), ("on node", "ip")) if name in facts)
    if "signal" in facts:
        end = f"was ended by {facts['signal']}"
    elif "status" in facts:
        end = f"ended with exit status {facts['status']}"
    elif "node died" in report.lower() or "node is dead" in report.lower():
        end = "was lost with its node"
    else:
        end = "ended without a traceback, as after SIGKILL (kill -9 or the OOM killer), a crash, or os._exit"
    return f"{place} {end}".strip()


_FACTS = {
    "pid": r"\bpid: (\d+)",
    "ip": r"\bip: (\S+)",
    "signal": r"receives a (SIG\w+)",
    "status": r"exit code (\d+)",
}
"""The facts in a report of Ray, by regular expression."""


def _hf_error(error: RayTaskError) -> HfError:
    cause: Any = error
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, HfError):
        return cause
    if isinstance(cause, RayActorError):  # a process whose result this call reads
        return LostProcessError("HF806", f"a worker's process is gone: {cause}")
    if isinstance(cause, ObjectLostError):  # a value that this call reads
        return LostProcessError("HF806", f"a worker's output is lost ({type(cause).__name__})")
    return RoleError("HF806", f"a worker failed outside of a role's method: {error}")


def checked_deadline(seconds: float | None) -> float | None:
    """A deadline in seconds, or None for no limit; ``ResourceError`` (HF931) for anything else."""
    if seconds is None:
        return None
    if not is_duration(seconds):
        raise ResourceError(
            "HF931", f"a deadline must be a positive number of seconds, or None to wait forever; got {seconds!r}"
        )
    return float(seconds)


@dataclass(frozen=True, slots=True)
class Waiter:
    """Waits for a group's calls up to a deadline, and then reads the stacks of late processes."""

    seconds: float | None
    processes: tuple[WatchedProcess | None, ...] = ()

    def fetch(self, refs: Sequence[ObjectRef[Any]], label: str, *, seconds: float | None = None) -> list[Any]:
        """The values of a call's references by rank, within ``seconds`` or else its own deadline.

        Raises:
            DeadlineError: HF807, with what every rank is doing.
            RoleError: HF806 if a body raised or a process died.
        """
        seconds = self.seconds if seconds is None else seconds
        try:
            return fetch(refs, seconds)
        except GetTimeoutError:
            raise DeadlineError("HF807", self._late(refs, label, seconds or 0.0)) from None
        except RoleError as error:
            if dead := _dead_ranks(refs):
                raise LostProcessError(
                    "HF806", f"in {label} {ranks_in_words(dead)} died: {error.message}"
                ) from error.__cause__
            raise

    def within(self, seconds: float | None) -> Waiter:
        """This waiter with another deadline."""
        return replace(self, seconds=checked_deadline(seconds))

    def _late(self, refs: Sequence[ObjectRef[Any]], label: str, seconds: float) -> str:
        ready = set(ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)[0])
        late = [rank for rank, ref in enumerate(refs) if ref not in ready]
        frames = stacks({rank: self.processes[rank] for rank in late if rank < len(self.processes)})
        states = dict.fromkeys(range(len(refs)), "has answered")
        states |= {rank: _state(frames.get(rank), label) for rank in late}
        return (
            f"{label} was not done after {seconds:g} s on {len(late)} of {len(refs)} ranks:\n  "
            + "\n  ".join(grouped(states))
            + "\nA body may wait for a peer, or needs longer: RayWorkerGroup(..., deadline=...) sets the time for all "
            "calls, register(..., deadline=...) for a method, group.with_deadline(seconds) for one call. "
            "The call is still running."
        )


UNBOUNDED = Waiter(None)
"""The waiter of futures without a group."""


def _dead_ranks(refs: Sequence[ObjectRef[Any]]) -> list[int]:
    """The ranks whose process died."""
    ready = ray.wait(list(refs), num_returns=len(refs), timeout=0)[0]
    dead = []
    for rank, ref in enumerate(refs):
        if ref in ready:
            try:
                ray.get(ref, timeout=0)
            except RayActorError:
                dead.append(rank)
            except (RayError, HfError):
                continue
    return dead


def _state(frames: Sequence[Frame] | None, label: str) -> str:
    """The activity of a late rank, from the frames of its stack, innermost first."""
    if not frames:
        return "gave no stack: its process is stopped, or out of reach"
    in_hfdsl = [Path(frame.file).parent == SOURCE_FOLDER for frame in frames]
    runner = next((i for i, frame in enumerate(frames) if in_hfdsl[i] and frame.function in BODY_RUNNERS), None)
    if runner is None:
        return "waits: an argument of the call is not there yet, or its coroutine awaits something"
    body = [frame for frame, is_own in zip(frames[:runner], in_hfdsl, strict=False) if not is_own]
    if not body:
        return "takes the arguments of the call"
    outer, inner = body[-1], body[0]
    other_call = "" if outer.function in (label.rpartition(".")[2], "<lambda>") else "has not begun: it still "
    innermost = f", in {inner}" if len(body) > 1 else ""
    return f"{other_call}runs {outer}{innermost}"
