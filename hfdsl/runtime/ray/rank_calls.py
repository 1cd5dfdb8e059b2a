"""The calls to ranks: waits that end at a deadline, and errors that name the rank that failed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import islice
from operator import or_
from typing import IO, Any, TypeVar

import ray

from hfdsl.errors import DeadlineError, RoleError
from hfdsl.plan.deadlines import CallDeadline, longest_deadline, role_deadline, step_deadline
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import Plan
from hfdsl.plan.segments import Segment, dependencies
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.failures import Called, late_ranks, lost_process
from hfdsl.runtime.rank.begun_calls import NotePlace, last_begun
from hfdsl.runtime.ray.call_deadlines import CallClocks, SubmittedCall
from hfdsl.runtime.ray.relay import as_completed
from hfdsl.runtime.ray.relay_client import GROUP, Relays, RemoteHandle
from hfdsl.single_controller.group import RayWorkerGroup
from hfdsl.single_controller.waiting import fetch, succeeded

T = TypeVar("T")

LAUNCH = "launch(..., deadline=...)"
ROLE = f"hf.place(..., deadline=...) or {LAUNCH}"
"""The settings that determine the deadline of calls that declare none, for messages."""


class RankCalls:
    """The calls in progress of a backend's ranks, each with its deadline.

    A step has a deadline, too: the launch's, and beside it the time of those of its calls that declare their own.
    """

    def __init__(self, plan: Plan, groups: Mapping[str, RayWorkerGroup], seconds: float) -> None:
        self.seconds = seconds
        """The launch's deadline."""
        self._deployment, self._process_groups, self._groups = plan.deployment, plan.groups, groups
        self.relays: Relays | None = None
        """The relays that call the ranks of a step, if the driver does not."""
        self._clocks = CallClocks()
        self._notes: dict[Process, IO[bytes] | None] = {}
        self._before: dict[str, Mapping[int, int]] = {}  # by plan: see ``Dependencies.before``
        self._declared: dict[str, dict[int, CallDeadline]] = {}  # by plan and node
        self._step_end = 0.0
        self.add(plan)

    def add(self, plan: Plan) -> None:
        """Add another plan of the same deployment."""
        limits = ((step.node, step_deadline(plan, step)) for step in plan.steps)
        self._declared[plan.name] = {node: limit for node, limit in limits if limit is not None}
        self._before[plan.name] = dependencies(plan).before

    @property
    def longest(self) -> float:
        """The longest deadline of any call."""
        return longest_deadline(self._deployment, self.seconds)

    @property
    def workers(self) -> dict[str, Sequence[Any]]:
        """The processes of each group."""
        return {name: group.workers for name, group in self._groups.items()}

    # -- submitting ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a step and its deadline."""
        if self._clocks.affect_deadlines:
            self.look()
            self._clocks.forget_failed()
        self._step_end = time.monotonic() + self.seconds + self._clocks.seconds_in_steps()

    def forget(self) -> None:
        """Forget the calls of replaced processes."""
        self._clocks.clear()

    def time_left(self) -> float:
        """The remaining seconds of the step's deadline."""
        return max(0.0, self._step_end - time.monotonic())

    def declares_deadlines(self, plan: str) -> bool:
        """Whether calls of a plan declare their own."""
        return bool(self._declared[plan])

    def submitted(self, submission: Submission, acknowledgments: Sequence[Any]) -> None:
        """Add the calls of a segment's ranks."""
        segment, plan, step = submission.segment, submission.call.plan, submission.call.step
        called, declared = Called.of(submission), self._declared[plan].get(segment.number)
        nodes = reduce(or_, (1 << part.node for part in segment.steps))
        before = self._ends_before(plan, segment)
        if declared is not None:
            self._step_end += declared.seconds  # a segment of its own
        for rank, acknowledgment in zip(segment.ranks, acknowledgments, strict=True):
            call = SubmittedCall(
                process=(segment.group, rank),
                called=called,
                deadline=declared or CallDeadline(self.seconds, ROLE),
                declared=declared is not None,
                ranks=len(segment.ranks),
                step=(plan, step),
                nodes=nodes,
                before=before,
            )
            self._clocks.add(acknowledgment, call)

    def _ends_before(self, plan: str, segment: Segment) -> int:
        """The nodes that end before a segment begins, one bit each."""
        before = reduce(or_, (self._before[plan].get(part.node, 0) for part in segment.steps))
        return reduce(or_, (1 << call[0] for call in segment.after if call is not None), before)

    def group_of(self, role: str) -> str:
        """The process group of a role."""
        return next(group.name for group in self._process_groups if role in group.roles)

    def call_role(self, role: str, label: str, method: str, arguments: Callable[[int], Sequence[Any]]) -> list[Any]:
        """Call a method of ``RankProcess`` for a role, on all of its ranks, with the role's deadline.

        ``label`` is the method of the role that it runs.
        """
        limit = role_deadline(self._deployment, role) or CallDeadline(self.seconds, ROLE)
        return self.call_each(self.group_of(role), f"'{role}.{label}'", method, arguments, limit)

    def call_each(
        self,
        group: str,
        label: str,
        method: str,
        arguments: Callable[[int], Sequence[Any]] = lambda _: (),
        limit: CallDeadline | None = None,
        returns: int = 1,
    ) -> list[Any]:
        """Call a method of ``RankProcess`` on the ranks of a group, each with its own arguments.

        Of a call that returns several objects the first one says that it has ended.
        """
        workers, called = self._groups[group].workers, Called(label, None, time.monotonic())
        refs = [
            getattr(worker, method).options(num_returns=returns).remote(*arguments(rank))
            for rank, worker in enumerate(workers)
        ]
        for rank, ref in enumerate(refs):
            call = SubmittedCall((group, rank), called, limit or CallDeadline(self.seconds, LAUNCH), len(workers))
            self._clocks.add(ref[0] if returns > 1 else ref, call)
        return refs

    def call_rank(
        self, process: tuple[str, int], label: str, method: str, arguments: Sequence[Any], returns: int
    ) -> list[Any]:
        """Call a method of ``RankProcess`` on one rank; the first of several objects says that it has ended."""
        group, rank = process
        method_of_rank = getattr(self._groups[group].workers[rank], method)
        refs: list[Any] = method_of_rank.options(num_returns=returns).remote(*arguments)
        called = Called(label, None, time.monotonic())
        self._clocks.add(refs[0], SubmittedCall(process, called, CallDeadline(self.seconds, LAUNCH), 1))
        return refs

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_for(self, refs: Sequence[Any]) -> list[Any]:
        """The values of calls, each within its deadline; raises the first failure at once.

        Raises:
            DeadlineError: HF807 if a deadline passed.
            RoleError: HF806 if a body raised or a process died.
        """
        [(_, values)] = self.in_turns([[refs]], lambda refs: refs)
        return values

    def in_turns(
        self, turns: Iterable[Iterable[T]], submit: Callable[[T], Sequence[Any]]
    ) -> Iterator[tuple[T, list[Any]]]:
        """Submit the first call of each sequence, and another one when it has ended on all ranks; yield their values.

        Raises, as ``wait_for``, the first failure of any of them.
        """
        remaining = [iter(calls) for calls in turns]
        running = {index: (call, submit(call)) for index, calls in enumerate(remaining) for call in islice(calls, 1)}
        values = dict[Any, Any]()
        with self.naming_losses():
            while running:
                pending = [ref for _, refs in running.values() for ref in refs if ref not in values]
                for ready in islice(as_completed(pending, math.inf), 1):
                    values |= zip(ready, fetch(ready), strict=True)
                    self._clocks.end(ready)
                    self.check()
                for index, (call, refs) in list(running.items()):
                    if all(ref in values for ref in refs):
                        yield call, [values[ref] for ref in refs]
                        del running[index]
                        for following in islice(remaining[index], 1):
                            running[index] = following, submit(following)

    def acknowledge(self, handles: Iterable[Any]) -> None:
        """Mark calls as ended, with their values received."""
        self._clocks.end(handles)

    def look(self) -> None:
        """Find out which calls have ended."""
        calls = list(self._clocks)
        self._clocks.end(call for call in calls if isinstance(call, RemoteHandle) and call.value is not None)
        refs = [call for call in calls if isinstance(call, ray.ObjectRef)]
        for ref in ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0] if refs else ():
            if succeeded(ref):
                self._clocks.end([ref])
            else:
                self._clocks.fail(ref)

    def check(self) -> None:
        """Raise ``DeadlineError`` (HF807) if a call takes longer than its deadline."""
        self.look()
        if late := self._clocks.late(time.monotonic()):
            first = late[0]
            (group, _), (seconds, set_by), count = first.process, first.deadline, len(self._clocks.unended(first))
            step = "" if first.called.step is None else f" in step {first.called.step}"
            raise DeadlineError(
                "HF807",
                f"{first.called.labels} was not done{step} after {seconds:g} s on {count} of {first.ranks} ranks of "
                f"'{group}'; a rank may wait for a peer, or the call needs longer: {set_by} sets this"
                f"{self.late_ranks()}",
            )

    def check_step(self, total: int, completed: int, kind: str) -> None:
        """Raise ``DeadlineError`` (HF807) if the step's calls did not all end within its deadline."""
        if completed < total:
            raise DeadlineError(
                "HF807",
                f"{total - completed} of {total} {kind} were not done after {self.seconds:g} s; a body may wait for "
                f"a peer, or the step needs longer: {LAUNCH}{self.late_ranks()}",
            )

    def late_ranks(self) -> str:
        """The activity of the ranks that have not replied, one line each."""
        processes = {
            (name, rank): process
            for name, group in self._groups.items()
            for rank, process in enumerate(group.hf_processes)
        }
        return late_ranks(processes, {process: calls[0] for process, calls in self._begun().items()})

    def read_notes(self) -> None:
        """Open the notes of processes on this machine about their last calls."""
        self.close_notes()
        pending = {name: self.call_each(name, "the start", "note") for name in self._groups}
        for name, refs in pending.items():
            places: list[NotePlace | None] = self.wait_for(refs)
            self._notes |= {(name, rank): place.open() if place else None for rank, place in enumerate(places)}

    def close_notes(self) -> None:
        """Close the notes."""
        for note in self._notes.values():
            if note is not None:
                note.close()
        self._notes.clear()

    def _died_in(self) -> dict[Process, Called]:
        """The call of each process in case it died, from its note or else from its calls in progress."""
        return {
            process: calls[0]._replace(labels=" or ".join(call.labels for call in calls))
            for process, calls in self._begun().items()
        }

    def _begun(self) -> dict[Process, list[Called]]:
        self.look()
        processes = self._clocks.running()
        return {process: self._clocks.begun(process, last_begun(self._notes.get(process))) for process in processes}

    @contextmanager
    def naming_losses(self) -> Iterator[None]:
        """Within this context, an error caused by a dead process names that process."""
        try:
            yield
        except RoleError as error:
            relays = {} if self.relays is None else {GROUP: self.relays.actors}
            if (lost := lost_process(error, {**self.workers, **relays}, self._died_in())) is not None:
                raise lost from error
            raise

    def references(self) -> Iterator[Any]:
        """The references of calls in progress."""
        yield from (call for call in self._clocks if isinstance(call, ray.ObjectRef))
