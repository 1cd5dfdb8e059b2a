"""A step of an independent stage; its ended calls determine which of its groups exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from hfdsl.plan.payloads import ColumnSlice, PayloadKey
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.queues import training_calls
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.messages import SegmentResult
from hfdsl.runtime.recovery.ended_calls import StepReplies
from hfdsl.runtime.step import StepRun
from hfdsl.runtime.step_routing import Routing


class StageRun(StepRun):
    """A step of a stage in progress; its result may stay in place for another stage to read."""

    def __init__(
        self, plan: Plan, backend: Backend, routing: Routing, step_number: int, sizes: Mapping[Any, int]
    ) -> None:
        super().__init__(plan, backend, routing, step_number, sizes, StepReplies(kept=False))
        self._calls = list[Any]()
        self._asked = 0  # how many acknowledgments ``_calls`` was made from

    @property
    def stage_and_number(self) -> tuple[int, int]:
        """The number of the stage, and that of the step among its steps."""
        stage = self._plan.stage_of
        return 0 if stage is None else stage.number, self._step_number

    def _begin_deadline(self) -> None:
        """Do nothing: a stage's deadline begins when the driver waits for a call (``PollingBackend.ended``)."""

    def result(self) -> Any:
        """The result, as for any step; waiting for its calls has begun the deadline for reading it."""
        self._driver.begin(self._plan.name, self._step_number)
        return self._result()

    @property
    def queries(self) -> Mapping[int, tuple[int, ...]]:
        """The results of runtime queries so far."""
        return dict(self._routing.query_results)

    @property
    def sizes(self) -> Mapping[Any, int]:
        """The sizes at the start of the step."""
        return self._routing.sizes

    def calls(self) -> list[Any]:
        """The acknowledgments of all submitted calls, except the driver's, which have ended."""
        self.new_calls()
        return self._calls

    def new_calls(self) -> list[Any]:
        """The calls submitted since the last call of this method."""
        if self._asked == len(self._acknowledgments):
            return []
        new = list(islice(self._acknowledgments.items(), self._asked, None))
        self._asked += len(new)
        handles = [handle for _, handle in new if not isinstance(handle, SegmentResult)]
        self._calls += handles
        return handles

    @property
    def waits(self) -> bool:
        """Whether segments wait for the results of runtime queries."""
        return bool(self._routing.open_queries)

    def calls_of(self, node: int) -> list[Any] | None:
        """The calls that run a node, by rank; None while they wait for a filter."""
        numbers = (
            segment.number for segment in self.routes.segments if any(step.node == node for step in segment.steps)
        )
        number = next((number for number in numbers if number in self._submitted), None)
        if number is None:
            return None
        return [handle for (segment, _), handle in self._acknowledgments.items() if segment == number]

    def result_calls(self) -> list[Any]:
        """The calls that make the result; without one those that train, or all calls."""
        makers = {key[:2] for key in self.routes.result} or self._training()
        handles = [handle for call, handle in self._acknowledgments.items() if call in makers or not makers]
        return [handle for handle in handles if not isinstance(handle, SegmentResult)]

    def _training(self) -> set[tuple[int, int]]:
        """The calls that train a state, by segment and rank."""
        nodes = training_calls(self._plan)
        segments = {segment.number for segment in self.routes.segments for step in segment.steps if step.node in nodes}
        return {call for call in self._acknowledgments if call[0] in segments}

    def loads(self, nodes: Collection[int]) -> Iterator[tuple[int, int, Any]]:
        """The acknowledgments of the calls of these nodes: node, rank, handle."""
        for segment in self.routes.segments:
            for step in segment.steps:
                if step.node in nodes:
                    for rank in step.ranks:
                        yield step.node, rank, self._acknowledgments[segment.number, rank]

    def makers(self, groups: Mapping[int, Collection[tuple[int, int]]]) -> dict[int, set[Any]]:
        """By group with rows in these chunks, the calls that make them, except the driver's."""
        segment_of = {step.node: segment.number for segment in self.routes.segments for step in segment.steps}
        made_by = dict[tuple[int, int], Any]()
        for node, chunk in {place for places in groups.values() for place in places}:
            group, rank = self._plan.layouts[node].producer(chunk)
            call = self._acknowledgments[segment_of[node], rank] if group != DRIVER else None
            if call is not None and not isinstance(call, SegmentResult):
                made_by[node, chunk] = call
        return {group: {made_by[place] for place in places if place in made_by} for group, places in groups.items()}

    def resolve(self, running: set[Any] | None = None) -> bool:
        """Submit segments whose runtime queries have results; return whether all segments are submitted.

        It waits for no call in ``running``, and adds the submitted calls to that set; without the set, it waits for all
        calls.
        """
        while True:
            if running is not None:
                running.update(self.new_calls())
            if not (open_queries := self._routing.open_queries):
                return True
            makers = {key[:2] for key in self.routes.query_payloads[open_queries[0]]}
            calls = [self._acknowledgments[maker] for maker in makers if maker in self._acknowledgments]
            if running is not None and any(call in running for call in calls if not isinstance(call, SegmentResult)):
                return False
            self._enter()
            self._resolve(open_queries[0])
            self._submit_ready()

    def taken_results(self) -> Iterator[tuple[PayloadKey, tuple[tuple[ColumnSlice, ...], Any]]]:
        """The payloads of the result, with their contents and handles, which the driver does not fetch."""
        slices = {
            payload.key: payload.slices
            for tasks in self.routes.tasks.values()
            for task in tasks.values()
            for payload in task.sends
        }
        slices |= {payload.key: payload.slices for sent in self.routes.driver_sends.values() for payload in sent}
        for key in dict.fromkeys(self.routes.result):
            yield key, (slices[key], self._handles[key])

    def driver_rows(self, part: ColumnSlice) -> Any:
        """Rows of a value that the driver holds."""
        self._enter()
        return self._driver.store.read(part.node, part.column, part.chunk, part.rows)
