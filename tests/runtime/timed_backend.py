"""Processes whose calls take given seconds: what Ray does, on a clock that the driver's waits advance.

A worked example. Rank 0 of an engine generates for 2 s and rank 1 for 5 s, and a judge of one rank reads the rows of
both; the driver submits all three calls at 0 s, and waits for any of them:

    ended([engine 0, engine 1, judge])    at 2 s: engine 0
    ended([engine 1, judge])              at 5 s: engine 1 and the judge, which takes no time

Bodies run when they are submitted, which changes no value. When their results exist is decided by the clock: a call
begins when it has been submitted, its process has ended all earlier calls, and all that it receives exists.
``intervals`` are the steps of all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hfdsl.plan.plan import Plan
from hfdsl.plan.timeline import Interval
from hfdsl.runtime.backend import Submission, do_nothing
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.messages import SegmentResult
from hfdsl.runtime.queues.durations import CallSeconds


@dataclass(frozen=True, eq=False)
class TimedCall:
    """A call of one rank, which has ended at a time."""

    end: float
    result: SegmentResult


@dataclass(frozen=True, eq=False)
class TimedPayload:
    """A payload, which exists from a time on."""

    exists: float
    payload: Any

    def read(self) -> Any:
        """Its contents."""
        return self.payload.read()


class TimedBackend(LocalBackend):
    """A backend that reports which calls have ended, as one with processes does."""

    def __init__(self, plan: Plan, seed: int, seconds: Mapping[str, CallSeconds]) -> None:
        super().__init__(plan, seed)
        self._seconds, self._now = seconds, 0.0
        self._free: dict[tuple[str, int], float] = {}
        self.intervals: list[Interval] = []

    def put(self, plan: Plan, content: Any) -> TimedPayload:
        """A payload of the driver."""
        return TimedPayload(self._now, super().put(plan, content))

    def run(self, submission: Submission) -> list[Any]:
        """Run the calls, and say when they end."""
        segment, replies = submission.segment, list[Any]()
        for i, (result, payloads) in enumerate(super().run(submission)):
            process = segment.group, segment.ranks[i]
            waits_for = [payload.exists for payload in submission.payloads[i]]
            waits_for += [call.end for call in submission.after[i]]
            end = max([self._now, self._free.get(process, 0.0), *waits_for])
            for step in (step for step in segment.steps if step.label in self._seconds):
                start = end
                end += self._seconds[step.label].of(0, step.label, submission.call.step, process[1])
                self.intervals.append(Interval(process, "call", step.label, start, end))
            self._free[process] = end
            replies.append((TimedCall(end, result), [TimedPayload(end, payload) for payload in payloads]))
        return replies

    def ended(self, awaited: Collection[TimedCall], others: Collection[TimedCall] = ()) -> list[TimedCall]:
        """Go on to the next end of an awaited call."""
        self._now = max(self._now, min(call.end for call in awaited))
        return [call for call in (*awaited, *others) if call.end <= self._now]

    def drop(self, calls: Sequence[TimedCall]) -> None:
        """Calls keep their own results."""

    def done(
        self, acknowledgments: Sequence[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = do_nothing
    ) -> list[SegmentResult]:
        """The results, once all calls have ended."""
        meanwhile()
        self._now = max([self._now, *(call.end for call in acknowledgments)])
        return [call.result for call in acknowledgments]

    def get(self, handles: Sequence[TimedPayload]) -> list[Any]:
        """The contents, once all of them exist."""
        self._now = max([self._now, *(payload.exists for payload in handles)])
        return super().get(handles)
