"""When groups and updates end: as processes say, or on a virtual clock.

A worked example of the virtual clock: an engine of two ranks generates two rows each, in 4 s on rank 0 and 2 s on rank
1, and a group is a row. Groups 2 and 3 have ended at 2 s, groups 0 and 1 at 4 s. Without seconds all end at once.

Calls of a process take their time one after another on the virtual clock, also where several may be in progress.

With weights in flight, the groups of a dispatch end together, at 4 s: until then its calls may take weights. Those that
arrive at 1 s are loaded after a quarter of the tokens of rank 0, and after half of those of rank 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from hfdsl.graph.columns import origins
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.plan import DRIVER, Step
from hfdsl.plan.rows import runtime_queries
from hfdsl.runtime.backend import PollingBackend
from hfdsl.runtime.queues.dispatched import Dispatched, Place
from hfdsl.runtime.queues.plan_simulation import CallSeconds, PlanClock
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.queues.stage_run import StageRun
from hfdsl.runtime.rank.in_flight import flights


class QueueTime(Protocol):
    """When what was submitted ends."""

    def accepts(self) -> bool:
        """Whether a process that begins a dispatch has nothing left to do."""
        ...

    def dispatched(self, dispatch: Dispatched) -> None:
        """The calls of a dispatch were submitted."""

    def trained(self, number: int, step: StageRun | None) -> None:
        """Those of an update were."""

    def idle(self) -> bool:
        """Whether no update is in progress."""
        ...

    def ended(self) -> Sequence[int] | None:
        """Wait until a group or an update ends: the groups. None where nothing is in progress."""
        ...

    def has_ended(self, step: StageRun) -> bool:
        """Whether all calls of a step have ended by now."""
        ...


class VirtualTime:
    """A clock on which calls take the ``seconds`` of their node, and on which nothing else takes time."""

    def __init__(self, stages: QueueStages, seconds: Mapping[str, CallSeconds], seed: int) -> None:
        self._stages, self._flights = stages, flights(stages.producer, stages.consumer)
        self._arrivals: dict[int, Mapping[str | None, Mapping[int, float]]] = {}  # by version, role and rank
        self._producers = PlanClock(stages.producer, seconds, seed)
        self._trainers = PlanClock(stages.consumer, seconds, seed, self._producers.free, fences=self._producers.fences)
        self._events: list[tuple[float, int, tuple[int, ...]]] = []
        self._order = count()
        self._now = self._trained = 0.0
        plan = stages.producer
        self._first = next((step for step in plan.steps if step.group != DRIVER), None)
        self._queried = [  # the chunks that decide which groups there are
            (node, chunk)
            for query in runtime_queries(plan)
            for node, _ in origins(plan.graph, query.ref.node, query.ref.column or VALUE)
            for chunk in range(plan.layouts[node].chunks)
        ]

    def accepts(self) -> bool:
        """Whether a rank of the first call is free."""
        return self._first is None or self._producers.free_at(self._first) <= self._now

    def dispatched(self, dispatch: Dispatched) -> None:
        """Its groups end with the last of the chunks that hold their rows, and not before filters have run."""
        self._producers.submit(0, dispatch.number, self._now)
        if self._first is not None:  # it accepts another dispatch then, even if filters lose all groups of this one
            self._push(max(self._now, self._producers.free_at(self._first)), ())
        queried = max((self._end(dispatch.number, place) for place in self._queried), default=self._now)
        ends = {
            group: max([queried, *(self._end(dispatch.number, place) for place in dispatch.places(group))])
            for group in dispatch.groups
        }
        if self._flights.calls:
            self._push(max(ends.values(), default=self._now), dispatch.groups)
            return
        for group, end in ends.items():
            self._push(end, (group,))

    def schedule(self, number: int, version: int, step: Step) -> list[tuple[int, float, int]]:
        """When each rank of a call takes which version: at its start, or after a share of its time."""
        taken: list[tuple[int, float, int]] = [(rank, 0, version) for rank in step.ranks]
        for later, roles in self._arrivals.items():
            for rank, time in roles.get(step.role, {}).items() if later > version else ():
                start, stop = self._producers.spans[number, step.node][rank]
                if time < start:
                    taken.append((rank, 0, later))
                elif time < stop:
                    taken.append((rank, (time - start) / (stop - start), later))
        return taken

    def settle(self) -> None:
        """All weights that were sent have arrived, as they have once processes have been waited for."""
        self._arrivals.clear()
        self._producers.fences.clear()

    def _end(self, number: int, place: Place) -> float:
        times = self._producers.chunks.get((number, place[0]), ())
        return max(self._now, times[place[1]]) if place[1] < len(times) else self._now

    def trained(self, number: int, step: StageRun | None) -> None:
        """It ends with its result."""
        self._trainers.submit(0, number, self._now)
        if self._flights.loads:
            self._arrivals[number + 1] = {
                load.role: {rank: end for rank, (_, end) in self._trainers.spans[number, load.node].items()}
                for load in self._flights.loads
            }
        self._trained = max(self._now, self._trainers.result(number))
        self._push(self._trained, ())

    def idle(self) -> bool:
        """Whether the last update has ended."""
        return self._trained <= self._now

    def ended(self) -> Sequence[int] | None:
        """All that ends next."""
        if not self._events:
            return None
        self._now, groups = self._events[0][0], list[int]()
        while self._events and self._events[0][0] == self._now:
            groups += heapq.heappop(self._events)[2]
        return groups

    def has_ended(self, step: StageRun) -> bool:
        """As soon as they are submitted."""
        return True

    def _push(self, time: float, groups: tuple[int, ...]) -> None:
        heapq.heappush(self._events, (time, next(self._order), groups))


class ProcessTime:
    """The time of processes: a group has ended when all calls have that make its rows."""

    def __init__(self, backend: PollingBackend, stages: QueueStages) -> None:
        self._backend, self._at_once = backend, flights(stages.producer, stages.consumer).at_once
        self._running: dict[int, Dispatched] = {}
        self._left: dict[int, set[int]] = {}  # by dispatch, the groups that have not ended
        self._ended: set[Any] = set()  # acknowledgments
        self._update: StageRun | None = None

    def accepts(self) -> bool:
        """Whether some rank may begin with another first call: so many may be in progress there at a time."""
        firsts = [dispatch.step.first_calls() for dispatch in self._running.values() if dispatch.step is not None]
        by_rank = list(zip(*firsts, strict=True))
        return not by_rank or any(sum(call not in self._ended for call in calls) < self._at_once for calls in by_rank)

    def dispatched(self, dispatch: Dispatched) -> None:
        """Wait for its calls from now on."""
        self._running[dispatch.number] = dispatch
        self._left[dispatch.number] = set(dispatch.groups)

    def trained(self, number: int, step: StageRun | None) -> None:
        """Wait for its calls from now on."""
        self._update = step

    def idle(self) -> bool:
        """Whether the calls of the last update have ended."""
        return self._update is None

    def ended(self) -> Sequence[int] | None:
        """The groups all of whose calls have ended since."""
        waits = {call for dispatch in self._running.values() if dispatch.step for call in dispatch.step.calls()}
        if self._update is not None:
            waits |= set(self._update.result_calls())
        self._ended &= waits
        open_calls = [call for call in waits if call not in self._ended]
        if not open_calls and not self._running and self._update is None:
            return None
        if open_calls:
            self._ended |= set(self._backend.ended(open_calls))
        if self._update is not None and all(call in self._ended for call in self._update.result_calls()):
            self._update = None
        groups = list[int]()
        for number, dispatch in list(self._running.items()):
            groups += self._groups_of(number, dispatch)
            if not self._left[number]:
                del self._running[number], self._left[number]
        return groups

    def has_ended(self, step: StageRun) -> bool:
        """Without waiting: a call may be behind one that takes long."""
        calls = list(step.calls())
        return len(self._backend.ended(calls, wait=False)) == len(calls)

    def _groups_of(self, number: int, dispatch: Dispatched) -> list[int]:
        step = dispatch.step
        if step is None:
            return []
        if not step.resolve(self._ended):
            return []
        dispatch.settle(step.table)
        done = [
            group
            for group in sorted(self._left[number])
            if all(call is None or call in self._ended for call in step.calls_of(dispatch.places(group)))
        ]
        self._left[number] -= set(done)
        return done
