"""The times at which groups and updates end: as processes report, or on a virtual clock.

A worked example of the virtual clock: an engine of two ranks generates two rows each, in 4 s on rank 0 and 2 s on rank
1, and a group is a row. Groups 2 and 3 have ended at 2 s, groups 0 and 1 at 4 s. Without seconds all end at once.

In a run on the virtual clock, calls of a process take their time one after another, also where several may be in
progress: calls that have ended run in their order, and one may end only after a later one if both share an engine. A
simulation runs no bodies, so it has as many calls at once as processes would have. Calls of processes on one device
share it by their utilization (``virtual_clock``).

Both follow one rule (docs/queues.md): a stage dispatches again once some rank has fewer than ``concurrent_calls``
unfinished generating calls (``QueueStages.generating``), including calls that wait for a filter of prompts.

With weights in flight, the groups of a dispatch end together, at 4 s: until then its calls may take weights. Those that
arrive at 1 s are loaded after a quarter of the tokens of rank 0, and after half of those of rank 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hfdsl.graph.columns import origins
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.rows import runtime_queries
from hfdsl.plan.timeline import Timeline
from hfdsl.runtime.backend import PollingBackend, WakingBackend
from hfdsl.runtime.queues.dispatched import Dispatched, Place
from hfdsl.runtime.queues.durations import CallSeconds
from hfdsl.runtime.queues.links import TRAINER
from hfdsl.runtime.queues.loop import QueuedId
from hfdsl.runtime.queues.plan_simulation import PlanCalls
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.queues.stage_run import StageRun
from hfdsl.runtime.queues.virtual_clock import VirtualCall, VirtualClock


class QueueTime(Protocol):
    """Determines when submitted work ends."""

    def accepts(self, stage: int) -> bool:
        """Whether a process may generate for another dispatch of a stage."""
        ...

    def filtered(self) -> bool:
        """Whether the filters of all dispatches have run."""
        ...

    def dispatched(self, stage: int, dispatches: Mapping[int, Dispatched]) -> None:
        """Note that the calls of a stage's step were submitted, which puts groups into these queues."""

    def trained(self, number: int, steps: Mapping[int, StageRun]) -> None:
        """Note that the calls of an update were submitted, by stage."""

    def idle(self) -> bool:
        """Whether no update is in progress."""
        ...

    def ended(self, full: Collection[int], happened: Callable[[], bool] | None = None) -> Sequence[QueuedId] | None:
        """Wait until a group or an update ends, and return the groups; None if nothing is in progress.

        Stages that are ``full`` cannot begin another dispatch before groups have left their queues. If the backend can
        wake up for it, the wait also ends once something else has ``happened``.
        """
        ...

    def submitted(self, step: StageRun) -> None:
        """Note that more calls of an unrecorded step may have been submitted."""

    def has_ended(self, step: StageRun) -> bool:
        """Whether all calls of an unrecorded step have been seen to end."""
        ...

    def recorded(self, step: StageRun) -> None:
        """Note that the results of a step's calls are not read again."""


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
        self._flights, self._at_once = stages.flights, at_once
        self._arrivals: dict[int, Mapping[str | None, Mapping[int, VirtualCall]]] = {}  # by version, role and rank
        self._clock, self._fences = VirtualClock(), dict[tuple[str | None, int], VirtualCall]()
        several = {call.node: at_once for call in self._flights.calls}  # all of them in the first stage
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
            if self._flights.calls:
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
        if self._flights.loads:
            [stage] = steps
            self._arrivals[number + 1] = {
                load.role: self._calls[stage].calls[number, load.node] for load in self._flights.loads
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


class ProcessTime:
    """The time of processes: a group has ended when all calls that make its rows have.

    The driver wakes up when something ends that a decision needs, and then sees everything else that has ended. While
    an update is in progress, nothing takes groups that only updates read. So of the stages that make such groups, the
    driver waits at most for generating calls, since a free process begins the next dispatch, and for no calls if there
    are no places for another dispatch. It always waits for a stage whose calls are submitted once a filter has run.
    """

    def __init__(self, backend: PollingBackend, stages: QueueStages) -> None:
        self._backend, self._stages = backend, stages
        self._open = set[Any]()  # the calls that have not ended, by acknowledgment
        # By stage and dispatch the generating calls, by rank, until all have ended; None while they wait for a filter.
        self._generating: list[dict[int, list[Any] | None]] = [{} for _ in stages.plans]
        self._unresolved: dict[tuple[int, int], Dispatched] = {}  # by queue and number, before filters have run
        self._makes: list[dict[Any, list[int]]] = [{} for _ in stages.queues]  # by queue and open call its groups
        self._calls_left: Counter[QueuedId] = Counter()  # of groups that have not ended
        self._results: set[Any] | None = None  # the calls that make the result of the update in progress
        self._for_updates = [
            link.reads == TRAINER and not runtime_queries(queue.producer)
            for queue, link in zip(stages.queues, stages.links.of, strict=True)
        ]

    def accepts(self, stage: int) -> bool:
        """Whether some rank has fewer unfinished generating calls than may be in progress."""
        calls = self._generating[stage].values()
        waiting = sum(by_rank is None for by_rank in calls)
        unended = (sum(call in self._open for call in of_rank) for of_rank in zip(*filter(None, calls), strict=True))
        return waiting + min(unended, default=0) < self._stages.flights.at_once

    def filtered(self) -> bool:
        """Whether the filters of all dispatches have run."""
        return not any(dispatch.step is not None and dispatch.step.waits for dispatch in self._unresolved.values())

    def dispatched(self, stage: int, dispatches: Mapping[int, Dispatched]) -> None:
        """Start waiting for the calls of a dispatch."""
        for queue, dispatch in dispatches.items():
            self._unresolved[queue, dispatch.number] = dispatch
            if dispatch.step is not None:
                self._open.update(dispatch.step.new_calls())
                self._generating[stage][dispatch.number] = self._generating_calls(stage, dispatch.step)

    def _generating_calls(self, stage: int, step: StageRun) -> list[Any] | None:
        """The generating calls of a dispatch, by rank; None while they wait for a filter."""
        node = self._stages.generating[stage]
        calls = None if node is None else step.calls_of(node)
        return calls if calls is not None or (node is not None and step.waits) else []

    def trained(self, number: int, steps: Mapping[int, StageRun]) -> None:
        """Start waiting for the calls of an update."""
        for step in steps.values():
            self._open.update(step.new_calls())
        self._results = {call for step in steps.values() for call in step.result_calls()}

    def idle(self) -> bool:
        """Whether the calls of the last update have ended."""
        return self._results is None

    def ended(self, full: Collection[int], happened: Callable[[], bool] | None = None) -> Sequence[QueuedId] | None:
        """The groups whose calls have all ended since the last call."""
        groups = self._resolved()
        if not groups:
            awaited = self._awaited(full)
            if not awaited and not self._calls_left and not self._unresolved and self._results is None:
                return None
            groups = self._end(self._wait(awaited, happened)) if awaited else []
            groups += self._resolved()
        if self._results is not None and self._open.isdisjoint(self._results):
            self._results = None
        return sorted(groups)

    def _wait(self, awaited: Collection[Any], happened: Callable[[], bool] | None) -> Sequence[Any]:
        """The calls that have ended, once one of the awaited ones has, or something else has happened."""
        others = self._open.difference(awaited)
        if happened is not None and isinstance(self._backend, WakingBackend):
            return self._backend.ended_or(awaited, others, happened)
        return self._backend.ended(awaited, others)

    def submitted(self, step: StageRun) -> None:
        """Start waiting for new calls of a step."""
        self._open.update(step.new_calls())

    def has_ended(self, step: StageRun) -> bool:
        """Whether its calls had ended at the last wait; a call may wait for a long one, so late is early enough."""
        return self._open.isdisjoint(step.calls())

    def recorded(self, step: StageRun) -> None:
        """Drop the results of a recorded step."""
        self._backend.drop(step.calls())

    def _awaited(self, full: Collection[int]) -> set[Any]:
        """The calls of which one has to end before the next decision."""
        awaited = set(self._results or ())
        at_once = self._stages.flights.at_once
        for stage, calls in enumerate(self._generating):
            # Where fewer calls than that are in progress on a rank, one of its newest ones has ended.
            for by_rank in list(calls.values())[-at_once:] if stage not in full else ():
                awaited.update(by_rank or ())
        for dispatch in self._unresolved.values():
            awaited.update(dispatch.step.calls() if dispatch.step is not None else ())
        for makes, for_updates in zip(self._makes, self._for_updates, strict=True):
            awaited.update(makes if self._results is None or not for_updates else ())
        return awaited & self._open

    def _end(self, calls: Iterable[Any]) -> list[QueuedId]:
        """Note ended calls, and return the groups that they complete."""
        ended = list[QueuedId]()
        self._open.difference_update(calls)
        for queue, makes in enumerate(self._makes):
            for call in calls:
                groups = [(queue, group) for group in makes.pop(call, ())]
                self._calls_left.subtract(groups)
                ended += (group for group in groups if not self._calls_left[group])
        for group in ended:
            del self._calls_left[group]
        self._generating = [
            {
                number: by_rank
                for number, by_rank in of_stage.items()
                if by_rank is None or not self._open.isdisjoint(by_rank)
            }
            for of_stage in self._generating
        ]
        return ended

    def _resolved(self) -> list[QueuedId]:
        """Find the calls behind the groups of dispatches whose filters have run; return the groups that have ended."""
        ended = list[QueuedId]()
        for (queue, number), dispatch in list(self._unresolved.items()):
            step, stage = dispatch.step, self._stages.links.of[queue].feeds
            if step is None:
                continue
            resolved = step.resolve(self._open)
            if self._generating[stage].get(number, ()) is None:
                self._generating[stage][number] = self._generating_calls(stage, step)
            if not resolved:
                continue
            del self._unresolved[queue, number]
            dispatch.settle(step.table)
            makes = self._makes[queue]
            for group, calls in step.makers({group: dispatch.places(group) for group in dispatch.groups}).items():
                remaining = calls & self._open
                for call in remaining:
                    makes.setdefault(call, []).append(group)
                if remaining:
                    self._calls_left[queue, group] = len(remaining)
                else:
                    ended.append((queue, group))
        return ended
