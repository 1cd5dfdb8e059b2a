"""Loads of weights in flight by the calls of dispatches: which loads are allowed, and which took place.

A program with weights in flight has a single queue. On the virtual clock, the weights that a call loads are known only
when it ends, so its dispatch is submitted then; dispatches keep their order. That would be too late for the dispatch's
calls of other roles whose weights an update changes between calls. In such a program dispatches are submitted at once,
and nothing arrives during a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hfdsl.errors import CheckpointError, HfError
from hfdsl.plan.plan import Plan
from hfdsl.plan.queues import decides
from hfdsl.runtime.backend import Backend, InFlightBackend, PollingBackend
from hfdsl.runtime.decisions import Decision, Loads, load_decisions
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.stage_plans import QueueStages, queue_stages
from hfdsl.runtime.queues.stage_run import StageRun
from hfdsl.runtime.queues.times import QueueTime
from hfdsl.runtime.queues.virtual_time import VirtualTime
from hfdsl.types.batches import Batch


def check_in_flight(plan: Plan, *, recovers: bool, backend: Backend | None = None) -> None:
    """Refuse weights in flight in a run that ``recovers``, and on a backend that does not deliver them.

    Raises:
        HfError: HF765.
    """
    if not decides(plan) or not queue_stages(plan).in_flight_sync.loads:
        return
    subject = f"'{plan.name}' sends weights in flight"
    if recovers:
        raise HfError("HF765", f"{subject}, which no run with retries= can repeat: leave out retries= or during=")
    if isinstance(backend, PollingBackend) and not isinstance(backend, InFlightBackend):
        declares = f"{type(backend).__name__} does not declare that it delivers them (weights_in_flight)"
        raise HfError("HF765", f"{subject}, and {declares}: leave out during=")


class DispatchLoads:
    """The loads of a run's dispatches; ``repeated`` holds the loads of an earlier run that this one repeats.

    ``first_version`` is the version that the sync before the first dispatch sent.
    """

    def __init__(self, stages: QueueStages, time: QueueTime) -> None:
        self._stages, self._in_flight_sync, self._time = stages, stages.in_flight_sync, time
        self.repeated: Loads | None = None
        self.first_version = 0
        self._unsubmitted: dict[int, tuple[Dispatched, Mapping[int, Batch]]] = {}
        self._decisions: deque[Decision] = deque()

    @property
    def awaited(self) -> bool:
        """Whether dispatches are submitted only when they end."""
        return (
            isinstance(self._time, VirtualTime) and bool(self._in_flight_sync.calls) and not self._in_flight_sync.shares
        )

    @property
    def scheduled(self) -> bool:
        """Whether calls load what a log or the virtual clock determines, rather than the newest version."""
        return self.repeated is not None or isinstance(self._time, VirtualTime)

    def submit(self, number: int, step: StageRun, inputs: Mapping[int, Batch], version: int) -> None:
        """Submit the calls of a dispatch, with their loads where a log or the virtual clock determines them.

        Raises:
            CheckpointError: HF761 if the log has loads within calls that are not put off here.
        """
        schedules: dict[int, Sequence[Sequence[Any]] | None] = {}
        for called in self._in_flight_sync.calls:
            node = called.node
            logged = [
                (rank, at, loaded)
                for rank in called.ranks
                for at, loaded in (self.repeated or {}).get((number, node, rank), ())
            ]
            clock: Sequence[Sequence[Any]] | None = None
            if isinstance(self._time, VirtualTime):
                at_once = [(rank, 0, version) for rank in called.ranks]
                clock = self._time.schedule(number, version, called) if self.awaited else at_once
                if logged and not self.awaited and any(loaded > version for *_, loaded in logged):
                    text = f"the log has weights that arrived during '{called.label}'"
                    reason = "a role that is called before the queue gets others between calls"
                    raise CheckpointError("HF761", f"{text}, and {reason}: only Ray can repeat it")
            schedules[node] = logged or clock
        step.begin(inputs)
        in_flight = self._in_flight_sync.of_dispatch(version, self.first_version, schedules)
        step.submit(0, [version], wait=False, in_flight=in_flight)

    def check_arrived(self, numbers: Collection[int], version: int) -> None:
        """Check that calls of these dispatches can end before the next update: a log may have newer weights for them.

        Raises:
            CheckpointError: HF908 if one waits for weights that are newer than ``version``.
        """
        labels = {called.node: called.label for called in self._in_flight_sync.calls}
        for (number, node, _), loaded in (self.repeated or {}).items():
            newest = max((taken for _, taken in loaded), default=0)
            if number in numbers and newest > version:
                text = f"'{labels[node]}' of dispatch {number} takes version {newest} of the weights in the log"
                raise CheckpointError(
                    "HF908", f"{text}, and version {version} is the newest; save after a later result"
                )

    def put_off(self, dispatch: Dispatched, inputs: Mapping[int, Batch]) -> None:
        """Put off a dispatch: submit it only when it has ended."""
        self._unsubmitted[dispatch.number] = dispatch, inputs

    def submit_through(self, last: int, backend: Backend) -> None:
        """Submit the dispatches up to one that has ended on the virtual clock, in order."""
        for number, (dispatch, inputs) in list(self._unsubmitted.items()):
            if number <= last and dispatch.step is not None:
                del self._unsubmitted[number]
                self.submit(number, dispatch.step, inputs, dispatch.version)
                self._note(dispatch, dispatch.groups, backend)

    def forget(self, number: int) -> bool:
        """Forget a dispatch that is gone; return whether it was never submitted."""
        return self._unsubmitted.pop(number, None) is not None

    def note(self, dispatches: Iterable[Dispatched], groups: Collection[int], backend: Backend) -> None:
        """Record the loads of the calls that made these groups, unless they were known at submission."""
        if self._in_flight_sync.calls and not self.awaited:
            for dispatch in dispatches:
                self._note(dispatch, set(dispatch.groups) & set(groups), backend)

    def _note(self, dispatch: Dispatched, groups: Iterable[int], backend: Backend) -> None:
        if dispatch.step is None:
            return
        labels = {called.node: called.label for called in self._in_flight_sync.calls}
        ended = {place for group in groups for place in self._makers(dispatch, group)}
        calls = [
            (node, rank, handle)
            for node, rank, handle in dispatch.step.loads(labels)
            if (node, rank) in ended - dispatch.noted
        ]
        dispatch.noted |= ended
        results = backend.done([handle for *_, handle in calls])
        loads = {
            (dispatch.number, node, rank): next(call.taken for call in result.calls if call.label == labels[node])
            for (node, rank, _), result in zip(calls, results, strict=True)
        }
        self._decisions += load_decisions(dispatch.queue.name, dispatch.version, dispatch.groups, loads)

    def _makers(self, dispatch: Dispatched, group: int) -> Iterator[tuple[int, int]]:
        """The calls that take weights in flight among those that made a group, as node and rank."""
        for called in self._in_flight_sync.calls:
            layout = dispatch.queue.producer.layouts[called.node]
            ranks = [layout.producer(chunk)[1] for node, chunk in dispatch.places(group) if node == called.node]
            yield from ((called.node, rank) for rank in ranks or called.ranks)

    @property
    def unlogged(self) -> tuple[Decision, ...]:
        """The loads of calls since the last call of ``decisions``."""
        return tuple(self._decisions)

    def restore(self, unlogged: Iterable[Decision]) -> None:
        """Continue with loads that an earlier run did not log."""
        self._decisions.extend(unlogged)

    def decisions(self) -> list[Decision]:
        """The loads of calls since the last call of this method."""
        decisions, self._decisions = list(self._decisions), deque()
        return decisions
