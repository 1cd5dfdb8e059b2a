"""The loop of queues: when a stage dispatches, takes and drops, in a simulation as in a run.

``QueueState`` says what may happen next; a ``QueueWorld``, with a virtual clock or processes, says when things end. The
loop goes through the stages, each before the stages behind it, and begins the first step that may begin. A stage in
front of all queues dispatches prompts whenever the queues that it feeds admit them, a producer accepts them, and the
loader has delivered them. A stage between two queues takes a batch and dispatches it into the next queue. The stages
that make results, together the trainer, take a batch from each of their queues once the previous update has ended. If
no step may begin, the loop waits until something ends, or prompts are delivered. Everything that ends at the same time
is seen before the next decision.

A worked example with lag 1 and two groups per batch; groups end in the order of dispatch, and an update ends at once::

    dispatch 0, 1 and 2, 3     no places are left: two batches of two
    0 to 3 end; take 0, 1      update 0
    dispatch 4, 5              under version 1
    take 2, 3                  update 1

Why a run and its simulation cannot differ. Both are this loop over the same states: whenever the same groups have ended
before each decision, the decisions are the same. A run that repeats a log (``LoggedWorld``) sees a group end only when
the log takes, drops or loses it next, so it makes the decisions of the log.

What a slow loader changes. Until it delivers, batches that are ready are handed on and trained, so a dispatch may come
after an update that it would have preceded: the log records which came first. Where the queues of a stage wait in
order, nothing overtakes a dispatch that has places, since their decisions depend on no times.

Why it never gets stuck. Suppose that nothing is running and no update can begin. Then a queue of the trainer has too
few groups for a batch, so it has places for another dispatch (``needed_places``). If the stage that feeds it reads a
queue, that queue has too few groups in turn, and so on, up to a stage that dispatches prompts. That stage may dispatch:
the queues on this way have places together, too (``places_in_a_row``). Only another queue that it feeds, or another way
to the trainer, could be full. The launch excludes that (``check_side_by_side``): since the last update a way had places
for a whole batch, and the dispatches that filled them again put a batch of fresh groups into every queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeAlias

from hfdsl.errors import CheckpointError, HfError
from hfdsl.runtime.decisions import (
    Decision,
    dispatch_decision,
    drop_decisions,
    lose_decision,
    take_decision,
    to_lines,
)
from hfdsl.runtime.queues.links import TRAINER, QueueLinks
from hfdsl.runtime.schedule import QueueBatch, QueueState, places_in_a_row

STARVED = 100
"""How often in a row all places of a queue may be lost before its reader counts as starved."""

QueuedId: TypeAlias = tuple[int, int]
"""A group: the index of its queue, and its number there."""


class QueueWorld(Protocol):
    """The stages that feed queues, and the trainer: everything that takes time."""

    def accepts(self, stage: int) -> bool:
        """Whether a stage that feeds queues can begin another dispatch."""
        ...

    def dispatch(
        self, stage: int, numbers: Sequence[int], prompts: Sequence[int], version: int, batch: QueueBatch | None
    ) -> None:
        """Begin these groups under a version: from these prompts, or from a ``batch`` of the queue in front."""

    def idle(self) -> bool:
        """Whether the trainer can begin another update."""
        ...

    def train(self, batches: Sequence[QueueBatch]) -> None:
        """Begin an update on one batch of each of the trainer's queues."""

    def ended(self) -> Sequence[QueuedId] | None:
        """Wait until something ends or the loader delivers, and return the groups that have ended since.

        None if nothing is in progress.
        """
        ...


def no_group(_: QueuedId) -> bool:
    """Return False: no group is lost."""
    return False


class PromptReader:
    """The prompts of a stage, in order; an iterator of them yields None while the loader has not delivered the next.

    After a dispatch that got none, ``pending`` says that the loader has to deliver more, and ``exhausted`` that too few
    are left.
    """

    def __init__(self, prompts: Iterator[int | None]) -> None:
        self._prompts, self._read = prompts, list[int]()
        self.pending = self.exhausted = False

    def next(self, count: int, again: Sequence[int]) -> list[int]:
        """The next ``count`` prompts, starting with those to dispatch ``again``; none if there are too few."""
        again = again[:count]
        new = count - len(again)
        self.pending = False
        for prompt in islice(self._prompts, max(new - len(self._read), 0)):
            if prompt is None:
                self.pending = True
                break
            self._read.append(prompt)
        self.exhausted = len(self._read) < new and not self.pending
        if len(self._read) < new:
            return []
        chosen, self._read[:new] = [*again, *self._read[:new]], ()
        return chosen


@dataclass(slots=True)
class QueueLoop:
    """The queues of a program and their loop, which can stop at every decision and continue."""

    queues: list[QueueState]
    links: QueueLinks = field(default_factory=QueueLinks)
    _losses_in_a_row: Counter[int] = field(default_factory=Counter, init=False)
    _paths: Mapping[int, Sequence[tuple[Sequence[int], int]]] = field(init=False)  # by stage, with their places

    def __post_init__(self) -> None:
        self._paths = {
            stage: [
                (path, places_in_a_row([self.queues[index].spec for index in path])) for path in self.links.paths(stage)
            ]
            for stage in (*self.links.sources, *self.links.between)
        }

    def run(
        self,
        world: QueueWorld,
        prompts: Mapping[int, Iterator[int | None]],
        lost: Callable[[QueuedId], bool] = no_group,
        log: Sequence[Decision] | None = None,
    ) -> Iterator[list[Decision]]:
        """Decide until the ``prompts`` of a stage, or the ``log`` to repeat, are used up and nothing more can happen.

        ``prompts`` are as a ``PromptReader`` takes them. Each item is a list of the decisions that are made together.

        Raises:
            HfError: HF762 if every group is lost, or nothing can happen any more although prompts are left.
            CheckpointError: HF761 if these queues cannot do what comes next in the log.
        """
        readers = {stage: PromptReader(of_stage) for stage, of_stage in prompts.items()}
        while True:
            if decisions := self._begin(world, readers):
                yield decisions
                continue
            groups = world.ended()
            if groups is None:
                if any(reader.pending for reader in readers.values()):
                    continue  # the loader has delivered between the two looks at it
                if any(reader.exhausted for reader in readers.values()) or (log is not None and not log):
                    return
                raise stalled(self.queues) if log is None else not_followed(self.queues, log[0])
            yield self._end(groups, lost, starves=log is None)

    def has_places(self, stage: int) -> bool:
        """Whether the queues that a stage feeds have places for another dispatch, alone and with those behind them."""
        for index in self.links.fed_by(stage):
            queue = self.queues[index]
            if not queue.admits(queue.spec.dispatch):
                return False
        for path, places in self._paths[stage]:
            occupied = sum(self.queues[index].occupied for index in path)
            if occupied + self.queues[path[0]].spec.dispatch > places:
                return False
        return True

    def again(self, stage: int) -> list[int]:
        """The prompts that a stage dispatches again."""
        return [prompt for index in self.links.behind(stage) for prompt in self.queues[index].again]

    def waits_in_order(self, stage: int) -> bool:
        """Whether the decisions about what a stage feeds depend on no times."""
        return all(self.queues[index].spec.late == "wait" for index in self.links.fed_by(stage))

    def _begin(self, world: QueueWorld, readers: Mapping[int, PromptReader]) -> list[Decision]:
        """Begin the first step that may begin; return no decisions if none may."""
        for reader in readers.values():
            reader.pending = False
        for stage, reader in readers.items():
            if self.has_places(stage) and world.accepts(stage):
                if prompts := reader.next(self._fed(stage).spec.dispatch, self.again(stage)):
                    return self._dispatch(world, stage, prompts, None)
                if reader.pending and self.waits_in_order(stage):
                    return []
        for stage in self.links.between:
            if world.accepts(stage) and (decisions := self._pass_on(world, stage)):
                return decisions
        return self._train(world) if world.idle() else []

    def _fed(self, stage: int) -> QueueState:
        """One of the queues that a stage feeds, each of which gets the same number of groups."""
        return self.queues[self.links.fed_by(stage)[0]]

    def _dispatch(
        self, world: QueueWorld, stage: int, prompts: Sequence[int], batch: QueueBatch | None
    ) -> list[Decision]:
        before = self._fed(stage)
        numbers = range(before.dispatched, before.dispatched + len(prompts))
        world.dispatch(stage, numbers, prompts, before.version, batch)
        decisions = list[Decision]()
        for index in self.links.fed_by(stage):
            before = self.queues[index]
            self.queues[index] = before.dispatch(prompts, batch.groups if batch is not None else ())
            decisions.append(dispatch_decision(before, self.queues[index]))
        for index in self.links.behind(stage) if batch is None else ():
            self.queues[index] = self.queues[index].sent_again(prompts)
        return decisions

    def _pass_on(self, world: QueueWorld, stage: int) -> list[Decision]:
        """Begin a step between two queues; if the queue behind is full, drop late groups from the queue in front."""
        decisions, batches = self._take(stage)
        if not batches or not self.has_places(stage):
            return decisions
        [(index, after, batch)] = batches
        dispatched = self._dispatch(world, stage, [group.prompt for group in batch.groups], batch)
        self.queues[index] = after
        return [*decisions, take_decision(batch), *dispatched]

    def _train(self, world: QueueWorld) -> list[Decision]:
        decisions, batches = self._take(TRAINER)
        if not batches:
            return decisions
        world.train([batch for *_, batch in batches])
        after = {index: state for index, state, _ in batches}
        for index, queue in enumerate(self.queues):
            self.queues[index] = after[index] if index in after else queue.advance()
        return [*decisions, *(take_decision(batch) for *_, batch in batches)]

    def _take(self, stage: int) -> tuple[list[Decision], list[tuple[int, QueueState, QueueBatch]]]:
        """Drop late groups from a stage's queues; also return each queue after a batch was taken, if all have one."""
        decisions, batches, queues = (
            list[Decision](),
            list[tuple[int, QueueState, QueueBatch]](),
            self.links.read_by(stage),
        )
        for index in queues:
            self.queues[index] = self.queues[index].drop_late()
            decisions += drop_decisions(self.queues[index])
            after, batch = self.queues[index].take()
            batches += [(index, after, batch)] if batch is not None else []
        return decisions, batches if len(batches) == len(queues) else []

    def _end(self, groups: Sequence[QueuedId], lost: Callable[[QueuedId], bool], *, starves: bool) -> list[Decision]:
        """Record ended groups, some of them lost to a filter; a run that repeats a log shows others only later."""
        by_queue: dict[int, list[int]] = {}
        for index, number in groups:
            by_queue.setdefault(index, []).append(number)
        decisions = list[Decision]()
        for index, numbers in sorted(by_queue.items()):
            lost_numbers = [number for number in numbers if lost((index, number))]
            self.queues[index] = self.queues[index].finish(number for number in numbers if number not in lost_numbers)
            if len(lost_numbers) < len(numbers):
                self._losses_in_a_row[index] = 0
            if lost_numbers:
                decisions.append(
                    self._lose(index, lost_numbers, starves=starves, all_of_them=len(lost_numbers) == len(numbers))
                )
        return decisions

    def _lose(self, index: int, lost_numbers: Sequence[int], *, starves: bool, all_of_them: bool) -> Decision:
        state = self.queues[index]
        self._losses_in_a_row[index] += len(lost_numbers) if all_of_them else 0
        if starves and self._losses_in_a_row[index] > STARVED * state.spec.places:
            raise starved(state, self._losses_in_a_row[index])
        self.queues[index] = state.lose(lost_numbers)
        return lose_decision(self.queues[index], lost_numbers)


@dataclass(slots=True)
class LoggedWorld:
    """A world in which groups end when a log next takes or drops them; ``expected`` shrinks with each decision.

    Groups that have ``arrived`` have ended; the loop has not seen all of them. ``names`` are those of the queues.
    """

    world: QueueWorld
    expected: MutableSequence[Decision]
    links: QueueLinks = field(default_factory=QueueLinks)
    names: Sequence[str] = ("queue",)
    arrived: set[QueuedId] = field(default_factory=set)
    _seen: set[QueuedId] = field(default_factory=set)

    def accepts(self, stage: int) -> bool:
        """Whether the log's next step is of this stage, and everything that it takes or drops has been seen."""
        if not self.expected:
            return False
        link = self.links.of[self._index(self.expected[0])]
        if self.expected[0].kind == "dispatch":
            return link.feeds == stage
        return link.reads == stage and self._next_groups() <= self._seen

    def dispatch(
        self, stage: int, numbers: Sequence[int], prompts: Sequence[int], version: int, batch: QueueBatch | None
    ) -> None:
        """Begin groups as the wrapped world does."""
        self.world.dispatch(stage, numbers, prompts, version, batch)

    def idle(self) -> bool:
        """Whether the log's next entry is an update or its drops, with all groups seen and the trainer idle."""
        return self.accepts(TRAINER) and self.world.idle()

    def train(self, batches: Sequence[QueueBatch]) -> None:
        """Begin an update as the wrapped world does."""
        self.world.train(batches)

    def ended(self) -> Sequence[QueuedId] | None:
        """The groups of the log's next decision, once all of them have ended."""
        unseen = self._next_groups() - self._seen
        while not unseen or not unseen <= self.arrived:
            groups = self.world.ended()
            if groups is None:
                return None
            self.arrived |= set(groups)
            if not unseen:
                return ()
        self._seen |= unseen
        return sorted(unseen)

    @property
    def unseen(self) -> set[QueuedId]:
        """The ended groups that the loop has not seen."""
        return self.arrived - self._seen

    def _next_groups(self) -> set[QueuedId]:
        """The groups that the log takes, drops or loses next; for a step that reads several queues, those of all."""
        if not self.expected or self.expected[0].kind == "dispatch":
            return set()
        together = 1
        if self.expected[0].kind == "take":
            together = len(self.links.read_with(self._index(self.expected[0])))
        decisions = islice(self.expected, together)
        return {(self._index(decision), group) for decision in decisions for group in decision.groups}

    def _index(self, decision: Decision) -> int:
        return self.names.index(decision.queue)


def starved(state: QueueState, losses: int) -> HfError:
    """The error for a queue whose reader gets nothing."""
    spec, ready = state.spec, sum(group.status == "ready" for group in state.groups.values())
    return HfError(
        "HF762",
        f"queue '{spec.name}' (lag {spec.lag}, late=\"{spec.late}\") starves before update {state.version}: the last "
        f"{losses} groups were lost, and {ready} of the {spec.batch} groups of a batch are ready",
    )


def not_followed(queues: Sequence[QueueState], expected: Decision) -> CheckpointError:
    """The error for a log whose next decision these queues do not make."""
    declared = ", ".join(f"'{queue.spec.name}' (lag {queue.spec.lag}, late=\"{queue.spec.late}\")" for queue in queues)
    return CheckpointError(
        "HF761",
        f"the log has {to_lines([expected]).strip()} where {declared} cannot do this; a log can be repeated only by "
        "the program that wrote it, with the same lags and from the step at which it begins",
    )


def stalled(queues: Sequence[QueueState]) -> HfError:
    """The error for queues that lost groups, so that the rest fills no batch and leaves no places."""
    state = next((queue for queue in queues if not queue.admits(queue.spec.dispatch)), queues[0])
    spec = state.spec
    return HfError(
        "HF762",
        f"queue '{spec.name}' (lag {spec.lag}, late=\"{spec.late}\") stalls before update {state.version}: "
        f"{state.occupied} of its {spec.places} places are in use, a step needs {spec.dispatch}, and a batch has "
        f"{spec.batch} groups",
    )
