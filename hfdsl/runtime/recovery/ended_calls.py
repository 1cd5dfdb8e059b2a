"""The part of a step that need not be repeated after a loss: calls that have ended in surviving processes.

A worked example: an actor samples and trains, a judge of two ranks scores in between, and rank 1 of it is killed
(payloads have the keys of ``hfdsl.runtime.step``)::

    segment  call          receives           before the loss            after it
    1        actor.draw    the caller's rows  has ended                  is not repeated: its handles are used again
    2        judge.score   (1, 0, 0)          rank 0 waits, rank 1 dies  runs in new processes, from the same handle
    3        actor.update  (2, 0, 0)          never began                runs

The processes of the actor keep what ``draw`` has left in their stores, and the payloads that ``draw`` has sent are in
Ray's object store for as long as the driver has their handles, which is to the end of the step.

Why it is right. *The same values*: no state has changed in this step (``RayGroups.rebuild``), so a call that runs again
returns the same values in any order, and one that does not has returned them. *Every input exists*: a call reads
from its own process what earlier calls of the group have left there, and drops each value after its last reader. So of
a group the calls that have ended must be the first ones, the same on all ranks; else the whole group begins the step
again. Inputs from other groups have handles. Exported weights have none: they are too large to keep. If a later call
reads them, the group that exported them begins the step again, and its own inputs are examined again.

A second loss may interrupt a step before it comes to a call that had ended before the first one: its replies are kept
for the next attempt, too (``StepAttempt.with_unreached``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hfdsl.plan.payloads import DRIVER_RANK, PayloadKey
from hfdsl.plan.routes import Routes
from hfdsl.plan.segments import Segment
from hfdsl.protocols.state import effects_of

Replies: TypeAlias = Sequence[tuple[Any, Sequence[Any]]]
"""The handles of the acknowledgment and payloads of each rank of a segment; None for one that is not kept."""


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """An interrupted attempt of a step: its routes, as far as known, and the replies of its segments, as submitted."""

    routes: Routes
    replies: Mapping[int, Replies]

    def with_unreached(self, ended: StepAttempt) -> StepAttempt:
        """This attempt, with the calls that had ended in an earlier one, and that this one has not come to.

        The earlier one may know more of the routes. Both attempts have the same rows, so those hold for both.
        """
        unreached = {number: replies for number, replies in ended.replies.items() if number not in self.replies}
        knows_all = self.replies.keys() <= {segment.number for segment in ended.routes.segments}
        routes = ended.routes if unreached and knows_all else self.routes
        numbers = {segment.number for segment in routes.segments}
        in_routes = {number: replies for number, replies in unreached.items() if number in numbers}
        return StepAttempt(routes, {**self.replies, **in_routes})


class StepReplies:
    """The replies of a step in progress: of calls that an earlier attempt has ended, and of those that this one makes.

    If ``kept``, an attempt after a loss may use them.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept: dict[int, Replies] | None = {} if kept else None
        self._ended: StepAttempt | None = None

    def skip(self, ended: StepAttempt) -> None:
        """Before the step begins, skip the calls that ended in earlier attempts."""
        self._ended = ended

    def attempt(self, routes: Routes) -> StepAttempt | None:
        """The part of this attempt that one after a loss may use; None if no replies are kept."""
        if self._kept is None:
            return None
        attempt = StepAttempt(routes, self._kept)
        return attempt if self._ended is None else attempt.with_unreached(self._ended)

    def of(self, segment: Segment, run: Callable[[], Replies]) -> Replies:
        """The replies of a segment, which is ``run`` unless its calls have ended."""
        ended = None if self._ended is None else self._ended.replies.get(segment.number)
        if self._kept is not None:
            self._kept[segment.number] = ()  # if ``run`` raises
        replies = run() if ended is None else ended
        if self._kept is not None:
            self._kept[segment.number] = _without_weights(segment, replies)
        return replies


def _without_weights(segment: Segment, replies: Replies) -> Replies:
    """The replies that a step keeps to its end: all except exported weights."""
    effects = (effect for step in segment.steps for effect in effects_of(step.signature.body))
    if all(effect.kind != "exports" for effect in effects):
        return replies
    return [(acknowledgment, [None] * len(handles)) for acknowledgment, handles in replies]


def ended_calls(
    routes: Routes,
    replies: Mapping[int, Replies],
    groups: Collection[str],
    ended: Callable[[Sequence[Any]], Sequence[bool]],
) -> tuple[dict[int, Replies], set[str]]:
    """The replies of segments that need not run again, and the groups whose processes need their values for that.

    ``replies`` are those of the segments that were submitted, in their order, ``groups`` those whose processes are
    still there; ``ended`` says which calls have ended well, by their acknowledgments.
    """
    segments = {segment.number: segment for segment in routes.segments}
    outcomes = {number: set(ended([call for call, _ in of_ranks])) for number, of_ranks in replies.items()}
    remaining = set(groups)
    for group in groups:
        in_order = [outcome for number, outcome in outcomes.items() if segments[number].group == group]
        if any(len(outcome) != 1 for outcome in in_order) or in_order != sorted(in_order, key={True}.__ne__):
            remaining.remove(group)
    while True:
        reused = [
            number for number, outcome in outcomes.items() if outcome == {True} and segments[number].group in remaining
        ]
        exporters = {
            segments[number].group
            for number, rank, position in _reads_to_come(routes, reused)
            if number in reused
            and rank != DRIVER_RANK  # the driver makes it again of what the ranks have returned
            and replies[number][segments[number].ranks.index(rank)][1][position] is None
        }
        if not exporters:
            return {number: replies[number] for number in reused}, remaining
        remaining -= exporters


def _reads_to_come(routes: Routes, reused: Collection[int]) -> Iterator[PayloadKey]:
    """The payloads that are, or may be, read if these segments do not run again; the driver reads all of its own."""
    for segment in routes.segments:
        for rank, keys in routes.receives[segment.number].items():
            if segment.number not in reused or rank not in segment.ranks:
                yield from keys
        if segment.custom:
            yield from ((segment.number, rank, 0) for rank in segment.ranks)
    for keys in routes.query_payloads.values():
        yield from keys
    yield from routes.result
    yield from routes.pending_payloads
