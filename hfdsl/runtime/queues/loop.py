"""The loop of a queue: when it dispatches, takes and drops, in a simulation and in a run alike.

``QueueState`` says what may happen next, and a ``QueueWorld`` when things end: a virtual clock, or processes. The loop
dispatches whenever the queue admits it and a producer accepts it, takes when the trainer is idle, and otherwise waits
until something ends. Of what ends at one time all is seen before the next decision.

A worked example, in which groups end in the order of their dispatch and an update at once: lag 1, two groups a batch::

    dispatch 0, 1 and 2, 3     no places are left: two batches of two
    0 to 3 end; take 0, 1      update 0
    dispatch 4, 5              under version 1
    take 2, 3                  update 1

Why a run and its simulation cannot differ. Both are this loop over the same ``QueueState``: whenever the same groups
have ended before each decision, the decisions are the same. A run that repeats a log (``LoggedWorld``) sees groups end
only when the log has them taken or dropped next, so it decides what the log says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from hfdsl.errors import HfError
from hfdsl.runtime.decisions import Decision, dispatch_decision, lose_decision, take_decisions
from hfdsl.runtime.schedule import QueueBatch, QueueState

STARVED = 100
"""After so many times the places of a queue were lost without a group between, the reader waits in vain."""


class QueueWorld(Protocol):
    """What takes time: the producers of groups, and the trainer."""

    def accepts(self) -> bool:
        """Whether a producer can begin with another dispatch."""
        ...

    def dispatch(self, numbers: Sequence[int], prompts: Sequence[int], version: int) -> None:
        """Begin to make these groups, of these prompts, under a version."""

    def idle(self) -> bool:
        """Whether the trainer can begin with another batch."""
        ...

    def train(self, batch: QueueBatch) -> None:
        """Begin with a batch."""

    def ended(self) -> Sequence[int] | None:
        """Wait until something ends: the groups that have ended since. None where nothing is under way."""
        ...


def no_group(_: int) -> bool:
    """No group is lost."""
    return False


@dataclass(slots=True)
class QueueLoop:
    """A queue and its loop, which may be left at every decision and run again."""

    state: QueueState
    _losses_in_a_row: int = field(default=0, init=False)

    def run(
        self,
        world: QueueWorld,
        prompts: Iterator[int],
        lost: Callable[[int], bool] = no_group,
        log: Sequence[Decision] | None = None,
    ) -> Iterator[list[Decision]]:
        """Decide until the prompts, or the ``log`` to repeat, have ended and nothing can happen any more.

        It gives the decisions that are made together.

        Raises:
            HfError: HF762 where every group is lost, or nothing can happen any more although prompts are left.
        """
        exhausted, read = False, list[int]()
        while True:
            while self.state.admits(self.state.spec.dispatch) and world.accepts():
                if exhausted := not self._find_prompts(prompts, read):
                    break
                yield [self._dispatch(world, read)]
            if world.idle():
                decisions = self._take(world)
                if decisions:
                    yield decisions
                    continue  # there are places
            numbers = world.ended()
            if numbers is None:
                if exhausted or (log is not None and not log):
                    return
                raise stalled(self.state)
            yield self._end(numbers, lost, starves=log is None)

    def _find_prompts(self, prompts: Iterator[int], read: list[int]) -> bool:
        """Whether there are enough prompts for a dispatch: those of dropped groups, and then those that were read."""
        missing = self.state.spec.dispatch - len(self.state.again) - len(read)
        read += islice(prompts, max(missing, 0))
        return len(self.state.again) + len(read) >= self.state.spec.dispatch

    def _dispatch(self, world: QueueWorld, read: list[int]) -> Decision:
        before = self.state
        again = before.again[: before.spec.dispatch]
        new = before.spec.dispatch - len(again)
        chosen, read[:new] = (*again, *read[:new]), ()
        after = before.dispatch(chosen)
        world.dispatch(range(before.dispatched, after.dispatched), chosen, before.version)
        self.state = after
        return dispatch_decision(before, after)

    def _take(self, world: QueueWorld) -> list[Decision]:
        before = self.state
        after, batch = before.take()
        if batch is not None:
            world.train(batch)
        self.state = after
        return take_decisions(before, after, batch)

    def _end(self, numbers: Sequence[int], lost: Callable[[int], bool], *, starves: bool) -> list[Decision]:
        """Groups have ended, some of which a filter loses; in a run that repeats a log others are seen later."""
        gone = [number for number in numbers if lost(number)]
        self.state = self.state.finish(number for number in numbers if number not in gone)
        if not gone:
            self._losses_in_a_row = 0 if numbers else self._losses_in_a_row
            return []
        self._losses_in_a_row = self._losses_in_a_row + len(gone) if len(gone) == len(numbers) else 0
        if starves and self._losses_in_a_row > STARVED * self.state.spec.places:
            raise starved(self.state, self._losses_in_a_row)
        self.state = self.state.lose(gone)
        return [lose_decision(self.state, gone)]


@dataclass(slots=True)
class LoggedWorld:
    """A world whose groups end when a log has them taken or dropped next; ``expected`` loses what was decided.

    Groups that have ``arrived`` have ended; the loop has not seen all of them.
    """

    world: QueueWorld
    expected: MutableSequence[Decision]
    arrived: set[int] = field(default_factory=set)
    _seen: set[int] = field(default_factory=set)

    def accepts(self) -> bool:
        """Whether the log dispatches next."""
        return bool(self.expected) and self.expected[0].kind == "dispatch"

    def dispatch(self, numbers: Sequence[int], prompts: Sequence[int], version: int) -> None:
        """As the world does."""
        self.world.dispatch(numbers, prompts, version)

    def idle(self) -> bool:
        """Whether the log takes or drops next, what it takes has ended, and the trainer is idle."""
        return self._taken() <= self._seen and bool(self._taken()) and self.world.idle()

    def train(self, batch: QueueBatch) -> None:
        """As the world does."""
        self.world.train(batch)

    def ended(self) -> Sequence[int] | None:
        """The groups of the next decision of the log, once all of them have ended."""
        wanted = self._taken() - self._seen
        while not wanted or not wanted <= self.arrived:
            numbers = self.world.ended()
            if numbers is None:
                return None
            self.arrived |= set(numbers)
            if not wanted:
                return ()
        self._seen |= wanted
        return sorted(wanted)

    @property
    def unseen(self) -> set[int]:
        """The groups that have ended, and that the loop has not seen."""
        return self.arrived - self._seen

    def _taken(self) -> set[int]:
        """The groups that the log takes or drops next."""
        if not self.expected or self.expected[0].kind == "dispatch":
            return set()
        return set(self.expected[0].groups)


def starved(state: QueueState, losses: int) -> HfError:
    """The error of a queue whose reader gets nothing."""
    spec, ready = state.spec, sum(group.status == "ready" for group in state.groups.values())
    return HfError(
        "HF762",
        f"queue '{spec.name}' (lag {spec.lag}, late=\"{spec.late}\") starves before update {state.version}: the last "
        f"{losses} groups were lost, {ready} of the {spec.batch} groups of a batch are there",
    )


def stalled(state: QueueState) -> HfError:
    """The error of a queue in which groups were lost: what is left fills no batch and leaves no places."""
    spec = state.spec
    return HfError(
        "HF762",
        f"queue '{spec.name}' (lag {spec.lag}, late=\"{spec.late}\") stalls before update {state.version}: "
        f"{state.occupied} of its {spec.places} places are in use, a step needs {spec.dispatch}, and a batch has "
        f"{spec.batch} groups",
    )
