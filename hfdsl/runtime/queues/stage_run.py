"""A step of a stage that steps on its own: which of its calls have ended says which of its groups there are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from hfdsl.plan.payloads import DRIVER_RANK, ColumnSlice, PayloadKey
from hfdsl.plan.plan import DRIVER
from hfdsl.runtime.messages import SegmentResult
from hfdsl.runtime.step import StepRun


class StageRun(StepRun):
    """One step of a stage in progress; its result may stay where it is, and be read by another stage."""

    def _begin_deadline(self) -> None:
        """That of a stage begins whenever the driver waits for one of its calls (``PollingBackend.ended``)."""

    def result(self) -> Any:
        """As of any step; the wait for its calls has begun the deadline of what is read of them."""
        self._driver.begin(self._plan.name, self._step_number)
        return self._result()

    @property
    def queries(self) -> Mapping[int, tuple[int, ...]]:
        """The results of runtime queries so far."""
        return dict(self._routing.query_results)

    @property
    def sizes(self) -> Mapping[Any, int]:
        """The sizes that it was begun with."""
        return self._routing.sizes

    def calls(self) -> Iterator[Any]:
        """The acknowledgments of all calls that were submitted, but for those of the driver, which have ended."""
        return (handle for handle in self._acknowledgments.values() if not isinstance(handle, SegmentResult))

    def first_calls(self) -> list[Any]:
        """Those of the first segment."""
        first = min((segment for segment, rank in self._acknowledgments if rank != DRIVER_RANK), default=None)
        return [handle for (segment, _), handle in self._acknowledgments.items() if segment == first]

    def result_calls(self) -> list[Any]:
        """Those of the calls that make the result; of all calls where there is none."""
        makers = {key[:2] for key in self.routes.result}
        made = [handle for call, handle in self._acknowledgments.items() if call in makers or not makers]
        return [handle for handle in made if not isinstance(handle, SegmentResult)]

    def loads(self, nodes: Collection[int]) -> Iterator[tuple[int, int, Any]]:
        """The acknowledgments of calls of these nodes: node, rank, handle."""
        for segment in self.routes.segments:
            for step in segment.steps:
                if step.node in nodes:
                    for rank in step.ranks:
                        yield step.node, rank, self._acknowledgments[segment.number, rank]

    def calls_of(self, places: Iterable[tuple[int, int]]) -> Iterator[Any]:
        """Those of the calls that make chunks of values, but for those of the driver, which have ended."""
        segment_of = {step.node: segment.number for segment in self.routes.segments for step in segment.steps}
        for node, chunk in places:
            group, rank = self._plan.layouts[node].producer(chunk)
            if group != DRIVER and not isinstance(
                handle := self._acknowledgments[segment_of[node], rank], SegmentResult
            ):
                yield handle

    def resolve(self, ended: Collection[Any] | None = None) -> bool:
        """Submit what waits for runtime queries whose values are there; whether all was submitted by now.

        Without ``ended``, the acknowledgments of calls, it waits for them.
        """
        if not self._routing.open_queries:
            return True
        self._enter()
        while open_queries := [
            query for query in self.routes.query_payloads if query not in self._routing.query_results
        ]:
            makers = {key[:2] for key in self.routes.query_payloads[open_queries[0]]}
            calls = [self._acknowledgments[maker] for maker in makers if maker in self._acknowledgments]
            if ended is not None and not all(isinstance(call, SegmentResult) or call in ended for call in calls):
                return False
            self._resolve(open_queries[0])
            self._submit_ready()
        return True

    def taken_results(self) -> Iterator[tuple[PayloadKey, tuple[tuple[ColumnSlice, ...], Any]]]:
        """The payloads of the result, with what they hold and their handles, which the driver does not fetch."""
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
