"""The times at which groups and updates end in processes: a group has ended when all calls that make its rows have.

The driver wakes up when something ends that a decision needs, and then sees everything else that has ended. While an
update is in progress, nothing takes groups that only updates read. So of the stages that make such groups, the driver
waits at most for generating calls, since a free process begins the next dispatch, and for no calls if there are no
places for another dispatch. It always waits for a stage whose calls are submitted once a filter has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from hfdsl.plan.rows import runtime_queries
from hfdsl.runtime.backend import PollingBackend, WakingBackend
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.links import TRAINER
from hfdsl.runtime.queues.loop import QueuedId
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.queues.stage_run import StageRun


class ProcessTime:
    """The time of processes, as their backend reports which calls have ended."""

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
        return waiting + min(unended, default=0) < self._stages.in_flight_sync.at_once

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
        at_once = self._stages.in_flight_sync.at_once
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
