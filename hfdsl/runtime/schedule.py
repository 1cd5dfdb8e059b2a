"""The decisions of a queue: which groups are dispatched, taken and dropped, and under which version of the weights.

There is no clock and no thread here: a ``QueueState`` is a value, and every event makes another one. A simulation or
a run, which have a clock, say when events happen.

A worked example. A batch has two groups, and the trainer may be at most one update behind what a producer reads: places
for (lag + 1) batches, so four groups may be on their way while the first update has not been taken.

>>> spec = QueueSpec("scored", lag=1, late="drop", batch=2)
>>> state = QueueState(spec).dispatch([0, 1, 2, 3])  # prompts 0 to 3 get the numbers 0 to 3, under version 0
>>> state.admits(1)
False

Groups 2 and 3 are done first; the trainer takes them under version 0, which is the first update.

>>> state, batch = state.finish([2, 3]).take()
>>> [group.number for group in batch.groups], batch.staleness, state.version
([2, 3], (0, 0), 1)

That leaves two places. The prompts 4 and 5 are generated under version 1, and are done before group 0, too. After the
next update, a group of version 0 would be two updates old.

>>> state, batch = state.dispatch([4, 5]).finish([4, 5]).take()
>>> [group.number for group in batch.groups], batch.staleness
([4, 5], (0, 0))
>>> state, batch = state.finish([0, 1]).take()
>>> batch, [group.number for group in state.dropped], state.admits(4)
(None, [0, 1], True)

``late="refill"`` puts the prompts 0 and 1 in front of the next ones (``state.again``); with "mask" the trainer gets
both groups with a mask; with "wait" it would have waited for them, and trained 0 and 1 first.

Why no bound is broken. Let B groups be a batch, k the lag, v the number of batches taken: the version. The staleness of
a group is the version under which it is taken minus the one under which it was dispatched.

- "drop" and "refill" remove every group that is late before they take; "mask" marks it. Trained groups have at most k.
- "wait" takes in the order of dispatch. A group may be dispatched while the groups before it that are not lost, p of
  them with those that were trained, are fewer than (k + v + 1) B. Nothing overtakes it, and groups lost before it
  only make p smaller, so it is taken at version p // B at the latest, and p // B <= k + v.

Why nothing deadlocks. Places are (k + 1) B. Say that no group is running. Late ones are removed, and r groups are
ready. If r >= B, a batch can be taken. Otherwise at most B - 1 places are in use, and a dispatch of s groups is
admitted if B - 1 + s <= (k + 1) B, that is s <= k B + 1. Where nothing is lost or dropped, r is a multiple of
gcd(s, B), and s <= k B + gcd(s, B) is enough; ``QueueSpec`` refuses any other s (HF760, ``needed_places``). A version
has finitely many groups to drop: what is dispatched under v is not late under v. So a batch is taken after finitely
many events, unless groups are lost.

Why "wait" needs no log. Under "wait" a place becomes free when a batch is taken, or when the trainer, on its way
through the groups in order, passes one that is lost. A loop that dispatches whenever it may, and before it takes,
always makes the same decisions: which group is lost depends on its values and not on the time at which it is done.

No prompt is lost or trained twice: a group leaves the state only with a batch, with ``dropped`` or with ``lose``, once;
under "refill" the prompt of a dropped group returns under another number.

Several queues. A version is one update of the program, which takes a batch from each queue in front of the stages that
train. A queue in front of another one is read between updates: its ``take`` is not an update (``trains`` is False), and
``advance`` counts the updates of the other queues. It never waits ("drop" or "refill"), so the bound still follows from
what is removed before a batch is taken. The version grows only finitely often until a batch of this queue is needed
again, so nothing deadlocks here either. Queues in a row also have limited places together (``places_in_a_row``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat, takewhile
from math import gcd
from types import MappingProxyType
from typing import Literal, TypeAlias

from hfdsl.errors import SizeError
from hfdsl.protocols.queueing import Late, needed_places

GroupStatus: TypeAlias = Literal["running", "ready", "lost"]


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue: a batch takes ``batch`` groups, a dispatch adds ``dispatch`` groups; ``lag`` in updates.

    It ``loses`` groups if a filter is in front of it. A batch ``trains`` if it is taken for an update rather than for a
    stage that feeds another queue.

    Raises:
        SizeError: HF760 if the queue would never fill a batch, or a number is out of range.
    """

    name: str
    lag: int
    late: Late = "wait"
    batch: int = 1
    dispatch: int = 1
    loses: bool = False
    trains: bool = True

    def __post_init__(self) -> None:
        if self.lag < 0 or self.batch < 1 or self.dispatch < 1:
            numbers = f"lag={self.lag}, batch={self.batch}, dispatch={self.dispatch}"
            raise SizeError(
                "HF760", f"queue '{self.name}': a lag is at least 0, and sizes are at least 1; got {numbers}"
            )
        needed = needed_places(self.dispatch, self.batch, 1, self.lag, self.late, self.loses)
        if needed > self.places:
            raise SizeError(
                "HF760",
                f"queue '{self.name}' has places for {self.places} groups ((lag {self.lag} + 1) * {self.batch}), and a "
                f"step puts {self.dispatch} in, which takes {needed} under late={self.late!r}"
                f"{' behind a filter' * self.loses}: the step would wait for places, and the reader for groups",
            )

    @property
    def places(self) -> int:
        """The maximum number of groups in progress: dispatched, and neither taken nor gone."""
        return (self.lag + 1) * self.batch

    @property
    def most_left(self) -> int:
        """The maximum number of groups without a batch among them, once all have ended and late ones are gone."""
        one_by_one = self.loses or (self.late in ("drop", "refill") and self.lag > 0)
        return self.batch - (1 if one_by_one else gcd(self.dispatch, self.batch))


def places_in_a_row(specs: Sequence[QueueSpec]) -> int:
    """The maximum number of groups in progress in consecutive queues, the last of which is the trainer's.

    With lags k1 and k2, a row that is trained at version v was dispatched at version v - k1 - k2 or later. So with
    batches of R groups there are places for k1 + k2 + 1 batches, although both queues alone have places for one more.

    Then a group that ends in order is late only if it waits for the stage between the queues, rather than for updates.
    Count groups in the order of dispatch. A batch in front has R1 groups, from number a on, and a dispatch D. Group a
    was dispatched at version w with groups up to a + g at least, g = gcd(D, R1), and there were P places for those that
    had not been trained::

        a + g - w R <= P

    The stage between takes the batch at the first version v that leaves places for it in the queue behind::

        a + R1 - v R <= (k2 + 1) R < a + R1 - (v - 1) R

    So (v - w) R < P + R1 - g - k2 R. For P = (k1 + k2 + 1) R - (R1 - g) this is (k1 + 1) R, and v - w <= k1.
    A third queue in front adds its lag times R, and subtracts its R1 - g. If stages would wait for each other forever
    with so few places, there are as many as they need.

    >>> queue = QueueSpec("first", lag=1, late="drop", batch=4, dispatch=4)
    >>> queue.places, places_in_a_row([queue]), places_in_a_row([queue, queue])
    (8, 8, 12)
    """
    *in_front, last = specs
    places = last.places
    for spec in in_front:
        places += spec.lag * last.batch - (spec.batch - gcd(spec.dispatch, spec.batch))
    return max(places, specs[0].dispatch + sum(spec.most_left for spec in specs))


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """The rows of one prompt in progress: number of dispatch, prompt, version of the weights at dispatch.

    They are made ``of`` a group of the queue in front of the stage that dispatched them, if there is one.
    """

    number: int
    prompt: int
    version: int
    status: GroupStatus = "running"
    of: QueuedGroup | None = None

    def with_status(self, status: GroupStatus) -> QueuedGroup:
        """A copy of the group with another status."""
        return QueuedGroup(self.number, self.prompt, self.version, status, self.of)


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """A batch taken for an update; ``masked`` are the numbers of late groups."""

    queue: str
    update: int
    groups: tuple[QueuedGroup, ...]
    masked: frozenset[int] = frozenset()

    @property
    def staleness(self) -> tuple[int, ...]:
        """The staleness of every trained group: the version when it is taken minus that of its dispatch."""
        return tuple(self.update - group.version for group in self.groups if group.number not in self.masked)


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a queue between two events.

    ``version`` is the number of batches taken, ``dispatched`` the number of groups dispatched. ``groups`` has the
    groups that are on their way, by number and in the order of dispatch, so the oldest versions come first. ``dropped``
    are the groups that the last ``take`` removed, ``again`` the prompts to dispatch first.
    """

    spec: QueueSpec
    version: int = 0
    dispatched: int = 0
    groups: Mapping[int, QueuedGroup] = field(default_factory=lambda: MappingProxyType({}))
    dropped: tuple[QueuedGroup, ...] = ()
    again: tuple[int, ...] = ()

    @property
    def occupied(self) -> int:
        """The number of places in use. Under "wait" a lost group keeps its place until the reader has passed it."""
        if self.spec.late != "wait":
            return len(self.groups)
        return len(self.groups) - sum(group.status == "lost" for group in self._passed_groups())

    def admits(self, count: int) -> bool:
        """Whether the queue has places for ``count`` more groups."""
        return self.occupied + count <= self.spec.places

    def dispatch(self, prompts: Sequence[int], of: Sequence[QueuedGroup] = ()) -> QueueState:
        """Add groups for these prompts under the current version, made ``of`` groups of a queue in front.

        Raises:
            SizeError: HF760 if there are no places for them.
        """
        if not self.admits(len(prompts)):
            raise SizeError(
                "HF760",
                f"queue '{self.spec.name}' has {self.spec.places} places (lag {self.spec.lag}), {self.occupied} of "
                f"them in use, and none for {len(prompts)} more groups",
            )
        numbers = range(self.dispatched, self.dispatched + len(prompts))
        groups = {
            number: QueuedGroup(number, prompt, self.version, of=group)
            for number, prompt, group in zip(numbers, prompts, of or repeat(None, len(prompts)), strict=True)
        }
        sent = self.sent_again(prompts)
        return replace(sent, dispatched=numbers.stop, groups=MappingProxyType({**self.groups, **groups}), dropped=())

    def sent_again(self, prompts: Sequence[int]) -> QueueState:
        """Mark prompts as dispatched, so that they are not dispatched again."""
        remaining = tuple(prompt for prompt in self.again if prompt not in prompts)
        return self if remaining == self.again else replace(self, again=remaining)

    def advance(self) -> QueueState:
        """Count an update on batches of other queues."""
        return replace(self, version=self.version + 1, dropped=())

    def finish(self, numbers: Iterable[int]) -> QueueState:
        """Mark the rows of these groups as complete."""
        return self._with_status(numbers, "ready")

    def run_again(self, numbers: Iterable[int]) -> QueueState:
        """Put groups back in progress: a log determines when they have ended."""
        return self._with_status(numbers, "running")

    def lose(self, numbers: Iterable[int]) -> QueueState:
        """Mark groups as lost: a filter keeps none of their rows, or they failed."""
        if self.spec.late == "wait":
            return self._with_status(numbers, "lost")
        return self._without(numbers)

    def drop_late(self) -> QueueState:
        """The state without late groups that are ready, unless they are masked or waited for."""
        late = tuple(group for group in takewhile(self._is_late, self.groups.values()) if group.status == "ready")
        if not late or self.spec.late in ("wait", "mask"):
            return replace(self, dropped=()) if self.dropped else self
        again = (*self.again, *(group.prompt for group in late)) if self.spec.late == "refill" else ()
        return replace(self._without(group.number for group in late), dropped=late, again=again)

    def take(self) -> tuple[QueueState, QueueBatch | None]:
        """The state after taking the next batch, and the batch; None if it is not complete.

        Late groups that are ready are dropped in either case (``drop_late``).
        """
        state = self.drop_late()
        passed = state._passed_groups() if self.spec.late == "wait" else list(state.groups.values())
        groups = tuple(islice((group for group in passed if group.status == "ready"), self.spec.batch))
        if len(groups) < self.spec.batch:
            return state, None
        masked = frozenset(group.number for group in groups if self.spec.late == "mask" and self._is_late(group))
        remaining = state._without(group.number for group in (passed if self.spec.late == "wait" else groups))
        version = self.version + self.spec.trains
        return replace(remaining, version=version, dropped=state.dropped), QueueBatch(
            self.spec.name, self.version, groups, masked
        )

    def _is_late(self, group: QueuedGroup) -> bool:
        return self.version - group.version > self.spec.lag

    def _passed_groups(self) -> list[QueuedGroup]:
        """The groups that the reader passes, in order, until its batch is full or it must wait."""
        passed, ready = list[QueuedGroup](), 0
        for group in self.groups.values():
            if group.status == "running" or ready == self.spec.batch:
                break
            passed.append(group)
            ready += group.status == "ready"
        return passed

    def _with_status(self, numbers: Iterable[int], status: GroupStatus) -> QueueState:
        changed = {number: self.groups[number].with_status(status) for number in numbers}
        return replace(self, groups=MappingProxyType({**self.groups, **changed}), dropped=())

    def _without(self, numbers: Iterable[int]) -> QueueState:
        removed = set(numbers)
        remaining = {number: group for number, group in self.groups.items() if number not in removed}
        return replace(self, groups=MappingProxyType(remaining), dropped=())
