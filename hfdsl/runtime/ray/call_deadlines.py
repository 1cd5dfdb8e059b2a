"""Deadlines of submitted calls: the time at which each could begin, and the calls that take too long.

A worked example. Two ranks; ``score`` has a deadline of 5 s, ``generate`` one of 60 s. The driver submits all calls at
once; rank 1 never returns from ``score``::

    seconds   rank 0              rank 1              clocks that run
    0         generate            generate            generate on both ranks
    20        score               generate            generate on rank 1: score reads what both ranks generate
    21        score               score               score on both ranks
    22        (waits for calls)   score               score on rank 1
    26                                                score on rank 1 is late

Why it is right. *Never too early*: the clock of a call starts when the driver has seen that all calls before it in its
process have ended, and on all ranks every call whose values it waits for, so its body could begin; the driver looks at
most once a second. *Never a hang*: of the calls that have not ended, the one that was submitted first waits for none of
the others, so its clock runs, and every call has a deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from hfdsl.plan.deadlines import CallDeadline
from hfdsl.plan.payloads import Process
from hfdsl.runtime.failures import Called
from hfdsl.runtime.rank.begun_calls import NO_STEP, BegunCall


@dataclass(frozen=True, slots=True)
class SubmittedCall:
    """A call of one rank: its process, its labels, its deadline, and the number of ranks called with it.

    ``declared`` says that a method or a placement declares the deadline of a call in a step.

    ``step`` is a plan and the number of a step; ``nodes`` has a bit for each node there that it runs, ``before`` for
    each that ends before it begins.
    """

    process: Process
    called: Called
    deadline: CallDeadline
    ranks: int
    declared: bool = False
    step: tuple[str, int] = NO_STEP
    nodes: int = 0
    before: int = 0

    def together(self, other: SubmittedCall) -> bool:
        """Whether another call is the same one on any rank."""
        return (self.process[0], self.called.labels, self.step) == (other.process[0], other.called.labels, other.step)


class CallClocks:
    """The calls in progress, in the order of submission, by any key, with the time at which each could begin.

    >>> clocks = CallClocks()
    >>> limit = CallDeadline(5.0, "register(..., deadline=...)")
    >>> for rank in (0, 1):
    ...     for label, nodes, before in (("generate", 0b01, 0), ("score", 0b10, 0b01)):
    ...         called = Called(label, 0, 0.0)
    ...         call = SubmittedCall(("actor", rank), called, limit, ranks=2, nodes=nodes, before=before)
    ...         clocks.add(f"{label} {rank}", call)
    >>> clocks.late(now=0.0)
    []
    >>> clocks.end(["generate 0"])
    >>> [call.process for call in clocks.late(now=5.5)]  # 'score' on rank 0 reads what rank 1 still generates
    [('actor', 1)]
    >>> clocks.end(["generate 1", "score 0"])
    >>> clocks.late(now=60.0), [call.process for call in clocks.late(now=66.0)]
    ([], [('actor', 1)])
    """

    def __init__(self) -> None:
        self._calls: dict[Any, SubmittedCall] = {}
        self._since: dict[Any, float] = {}
        self._failed: set[Any] = set()
        self._extending: dict[Any, SubmittedCall] = {}  # those that declare their deadlines, or are outside of steps

    def __iter__(self) -> Iterator[Any]:
        return iter(self._calls)

    def add(self, key: Any, call: SubmittedCall) -> None:
        """Add a submitted call."""
        self._calls[key] = call
        if call.declared or call.step == NO_STEP:
            self._extending[key] = call

    @property
    def affect_deadlines(self) -> bool:
        """Whether ended calls affect the deadline of the next step, or the state that is forgotten before it."""
        return bool(self._extending)

    def end(self, keys: Iterable[Any]) -> None:
        """Remove calls that have ended."""
        for key in keys:
            self._calls.pop(key, None)
            self._extending.pop(key, None)
            self._since.pop(key, None)
            self._failed.discard(key)

    def fail(self, key: Any) -> None:
        """Mark a call as failed; its process counts as still being in it."""
        self._failed.add(key)

    def forget_failed(self) -> None:
        """Forget failed calls outside of steps. A failed call in a step ends the run, and steps may overlap."""
        self.end({key for key in self._failed if self._calls[key].step == NO_STEP})

    def clear(self) -> None:
        """Forget all calls, since their processes were replaced."""
        self._calls.clear()
        self._extending.clear()
        self._since.clear()
        self._failed.clear()

    def running(self) -> dict[Process, Called]:
        """The first call of each process that has not ended or has failed."""
        running: dict[Process, Called] = {}
        for call in self._calls.values():
            running.setdefault(call.process, call.called)
        return running

    def begun(self, process: Process, note: BegunCall | None) -> list[Called]:
        """The call that a process may be in, or may have died in; ``note`` is the last call it began, if known.

        Else that is the first call that it has not ended. Since the reply to a call does not leave a process that dies
        right after it, it may also be the next one, if that could begin.

        >>> clocks, limit = CallClocks(), CallDeadline(5.0, "register(..., deadline=...)")
        >>> for label, nodes, before in (("'values'", 0b01, 0), ("'score'", 0b10, 0b01)):
        ...     called = Called(label, 0, 0.0)
        ...     clocks.add(label, SubmittedCall(("critic", 1), called, limit, 1, False, ("ppo", 0), nodes, before))
        >>> [called.labels for called in clocks.begun(("critic", 1), None)]
        ["'values'", "'score'"]
        >>> [called.labels for called in clocks.begun(("critic", 1), BegunCall("ppo", 0, "score"))]
        ["'score'"]
        """
        calls = [call for call in self._calls.values() if call.process == process]
        if note is None:
            return [call.called for call in calls[:2] if call is calls[0] or self._could_begin(call, calls[0])]
        for call in calls:
            if call.step == (note.plan, note.step) and f"'{note.label}'" in call.called.labels:
                return [call.called._replace(labels=f"'{note.label}'")]
        return [call.called for call in calls[:1]]

    def _could_begin(self, call: SubmittedCall, ended: SubmittedCall) -> bool:
        """Whether a call could begin once another one has ended."""
        others = (pending for pending in self._calls.values() if pending is not ended and pending.step == call.step)
        unended = reduce(or_, (pending.nodes for pending in others), 0)
        return not call.before & ~call.nodes & unended

    def late(self, now: float) -> list[SubmittedCall]:
        """The calls that have been able to begin for longer than their deadline."""
        pending = {key: call for key, call in self._calls.items() if key not in self._failed}
        nodes: dict[tuple[str, int], int] = {}
        for call in pending.values():
            nodes[call.step] = nodes.get(call.step, 0) | call.nodes
        late, busy = [], set[Process]()
        for key, call in pending.items():
            if call.process in busy:
                continue
            busy.add(call.process)
            if not call.before & ~call.nodes & nodes[call.step] and now - self._since.setdefault(key, now) > (
                call.deadline.seconds
            ):
                late.append(call)
        return late

    def seconds_in_steps(self) -> float:
        """The sum of the declared deadlines of calls in steps, counted once per call for all ranks."""
        declared = (call for call in self._extending.values() if call.declared)
        return sum({(call.step, call.nodes): call.deadline.seconds for call in declared}.values())

    def unended(self, call: SubmittedCall) -> Collection[SubmittedCall]:
        """The call on all ranks where it has not ended."""
        return [pending for key, pending in self._calls.items() if key not in self._failed and call.together(pending)]
