"""The times at which groups and updates end on a virtual clock.

A worked example: an engine of two ranks generates two rows each, in 4 s on rank 0 and 2 s on rank 1, and a group is a
row. Groups 2 and 3 have ended at 2 s, groups 0 and 1 at 4 s. Without seconds all end at once.

In a run on the virtual clock, calls of a process take their time one after another, also where several may be in
progress: calls that have ended run in their order, and one may end only after a later one if both share an engine. A
simulation runs no bodies, so it has as many calls at once as processes would have. Calls of processes on one device
share it by their utilization (``virtual_clock``).

With weights in flight, the groups of a dispatch end together, at 4 s: until then its calls may take weights. Those that
arrive at 1 s are loaded after a quarter of the tokens of rank 0, and after half of those of rank 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hfdsl.graph.columns import origins
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.rows import runtime_queries
from hfdsl.plan.timeline import Timeline
from hfdsl.runtime.queues.dispatched import Dispatched, Place
from hfdsl.runtime.queues.durations import CallSeconds
from hfdsl.runtime.queues.loop import QueuedId
from hfdsl.runtime.queues.plan_simulation import PlanCalls
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.queues.stage_run import StageRun
from hfdsl.runtime.queues.virtual_clock import VirtualCall, VirtualClock


@dataclass(slots=True)
class _Ending:
    """Groups that end together, with the last of these calls."""

    calls: list[VirtualCall]
    groups: Sequence[QueuedId]

    def is_over(self) -> bool:
        """Whether all calls have ended; those that have are not looked at again."""
        while self.calls and self.calls[-1].end is not None:
            self.calls.pop()
        return not self.calls


class VirtualTime:
    """A clock on which calls take the ``seconds`` of their node, and everything else takes no time.

    Up to ``at_once`` calls that take weights in flight are in progress in a process.
    """

    def __init__(self, stages: QueueStages, seconds: Mapping[str, CallSeconds], seed: int, *, at_once: int = 1) -> None:
        self._in_flight_sync, self._at_once = stages.in_flight_sync, at_once
        self._arrivals: dict[int, Mapping[str | None, Mapping[int, VirtualCall]]] = {}  # by version, role and rank
        self._clock, self._fences = VirtualClock(), dict[tuple[str | None, int], VirtualCall]()
        several = {call.node: at_once for call in self._in_flight_sync.calls}  # all of them in the first stage
        self._calls = [
            PlanCalls(plan, seconds, seed, clock=self._clock, at_once={} if number else several, fences=self._fences)
            for number, plan in enumerate(stages.plans)
        ]
        self._endings: list[_Ending] = []  # of groups in progress, and of the update
        self._update: Sequence[VirtualCall] = ()  # the calls that make the result of the update in progress
        self._generating = stages.generating
        # By stage, the generating calls of dispatches, by rank, until all have ended.
        self._generation: list[list[Sequence[VirtualCall]]] = [[] for _ in stages.plans]
        self._queried = [list(_queried_chunks(plan)) for plan in stages.plans]
        self._filters: list[VirtualCall] = []  # the calls that the filters of all dispatches read

    def accepts(self, stage: int) -> bool:
        """Whether some rank has fewer unfinished generating calls than may be in progress; it may wait for weights."""
        of_ranks = zip(*self._generation[stage], strict=True)
        return min((len(_unended(calls)) for calls in of_ranks), default=0) < self._at_once

    def filtered(self) -> bool:
        """Whether the filters of all dispatches have run."""
        self._filters = _unended(self._filters)
        return not self._filters

    def dispatched(self, stage: int, dispatches: Mapping[int, Dispatched]) -> None:
        """End the groups with the last of the chunks that hold their rows, after the filters have run."""
        number = next(iter(dispatches.values())).number
        self._calls[stage].submit(0, number)
        self._clock.settle()
        node = self._generating[stage]
        generation = [] if node is None else [list(self._calls[stage].calls[number, node].values())]
        self._generation[stage] = [calls for calls in self._generation[stage] + generation if _unended(calls)]
        queried = list(self._makers(stage, number, self._queried[stage]))
        self._filters = _unended([*self._filters, *queried])
        for queue, dispatch in dispatches.items():
            together: dict[Collection[Place], list[QueuedId]] = {}
            for group in dispatch.groups:
                together.setdefault(dispatch.places(group), []).append((queue, group))
            endings = [
                _Ending([*queried, *self._makers(stage, number, places)], groups) for places, groups in together.items()
            ]
            if self._in_flight_sync.calls:
                calls = [call for ending in endings for call in ending.calls]
                endings = [_Ending(calls, [group for ending in endings for group in ending.groups])]
            self._endings += endings

    def schedule(self, number: int, version: int, step: Step) -> list[tuple[int, float, int]]:
        """The times when each rank of a call takes each version: at its start, or after a share of its time."""
        for earlier in [arrived for arrived in self._arrivals if arrived <= version]:
            del self._arrivals[earlier]  # dispatches come in order
        calls = self._calls[0].calls[number, step.node]
        self._clock.run(calls.values())
        loads: list[tuple[int, float, int]] = [(rank, 0, version) for rank in step.ranks]
        for later, roles in self._arrivals.items():
            for rank, load in roles.get(step.role, {}).items() if later > version else ():
                start, stop = calls[rank].start, calls[rank].end
                if load.end is None or start is None or stop is None:
                    continue  # the weights have not arrived
                if load.end < start:
                    loads.append((rank, 0, later))
                elif load.end < stop:
                    loads.append((rank, (load.end - start) / (stop - start), later))
        return loads

    def settle(self) -> None:
        """Let all sent weights arrive, as they have after a wait for processes."""
        self._arrivals.clear()
        self._fences.clear()

    def _makers(self, stage: int, number: int, places: Iterable[Place]) -> Iterator[VirtualCall]:
        """The calls of a dispatch that make these chunks."""
        for node, chunk in places:
            chunks = self._calls[stage].chunks.get((number, node), ())
            yield from chunks[chunk] if chunk < len(chunks) else ()

    def trained(self, number: int, steps: Collection[int]) -> None:
        """End the update with its result."""
        for stage in steps:
            self._calls[stage].submit(0, number)
        self._clock.settle()
        self._update = [call for stage in steps for call in self._calls[stage].result(number)]
        self._endings.append(_Ending(list(self._update), ()))  # the loop sees the end of the update, too
        if self._in_flight_sync.loads:
            [stage] = steps
            self._arrivals[number + 1] = {
                load.role: self._calls[stage].calls[number, load.node] for load in self._in_flight_sync.loads
            }

    @property
    def now(self) -> float:
        """The seconds since the clock began."""
        return self._clock.now

    def busy(self, group: str) -> float:
        """The seconds in which the processes of a group have had a call in progress, added up."""
        return self._clock.busy(group)

    def timelines(self) -> Iterator[Timeline]:
        """The steps of all stages so far."""
        for calls in self._calls:
            yield from calls.timelines()

    def idle(self) -> bool:
        """Whether the last update has ended."""
        return not _unended(self._update)

    def ended(self, full: Collection[int], happened: Callable[[], bool] | None = None) -> Sequence[QueuedId] | None:
        """The groups that have ended now; if neither they nor an update have, advance to the next end of a call."""
        if not self._endings and self._clock.idle:
            return None
        over = [ending for ending in self._endings if ending.is_over()]
        if not over:
            self._clock.advance()
            over = [ending for ending in self._endings if ending.is_over()]
        self._endings = [ending for ending in self._endings if ending.calls]
        return sorted(group for ending in over for group in ending.groups)

    def submitted(self, step: StageRun) -> None:
        """Do nothing: no wait is for single calls."""

    def has_ended(self, step: StageRun) -> bool:
        """Return True: calls end on submission."""
        return True

    def recorded(self, step: StageRun) -> None:
        """Forget the calls of a recorded step."""
        stage, number = step.stage_and_number
        self._calls[stage].forget(number)


def _unended(calls: Iterable[VirtualCall]) -> list[VirtualCall]:
    return [call for call in calls if call.end is None]


def _queried_chunks(plan: Plan) -> Iterator[Place]:
    """The chunks that decide which groups exist."""
    for query in runtime_queries(plan):
        for node, _ in origins(plan.graph, query.ref.node, query.ref.column or VALUE):
            yield from ((node, chunk) for chunk in range(plan.layouts[node].chunks))
