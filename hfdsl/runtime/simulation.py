"""A queue on a virtual clock: what a cluster would decide, and how long its steps would take.

A worked example. Four slots generate, one prompt each; a batch has four groups, and an update takes 1 s. Every fourth
group takes 9 s, the others 1 s. Synchronously a step takes 10 s, for its longest group and the update:

>>> def simulated(lag, late):
...     spec = QueueSpec("scored", lag=lag, late=late, batch=4)
...     return simulate(spec, Slots(4, lambda number: 9.0 if number % 4 == 3 else 1.0, lambda update: 1.0), updates=8)
>>> simulated(0, "wait").seconds
10.0

With a lag of two, slots go on with other prompts, and the trainer waits less:

>>> simulated(2, "wait").seconds, simulated(2, "refill").seconds
(4.25, 3.25)

Under "wait" decisions do not depend on times, so a run of the same program decides the same:

>>> even = simulate(QueueSpec("scored", 2, "wait", 4), Slots(1, lambda number: 1.0, lambda update: 1.0), updates=8)
>>> even.decisions == simulated(2, "wait").decisions
True

The loop dispatches whenever the queue admits it, takes when the trainer is idle, and otherwise waits for the next
event. Unless the queue waits in order, it also keeps a prompt until a slot is free, and so dispatches it under newer
weights. Of events at one time all are seen before the next decision. What is dispatched under version v begins no
sooner than the v-th update has ended, since its weights do not exist before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from hfdsl.errors import HfError
from hfdsl.runtime.decisions import Decision, dispatch_decision, lose_decision, take_decisions
from hfdsl.runtime.schedule import QueueBatch, QueueSpec, QueueState


class World(Protocol):
    """What takes time: the producers of groups, and the trainer."""

    def accepts(self, now: float) -> bool:
        """Whether a producer can begin with another dispatch now."""
        ...

    def dispatch(self, numbers: Sequence[int], version: int, now: float) -> Sequence[tuple[float, Sequence[int]]]:
        """When which of these groups will be done; the weights of ``version`` are those after as many updates."""
        ...

    def train(self, batch: QueueBatch, now: float) -> float:
        """When the update with this batch will have ended."""
        ...

    def busy(self) -> tuple[float, float]:
        """Seconds of work so far: of a producer, on average over them, and of the trainer."""
        ...


class Slots:
    """Producers that generate one group each, beside a trainer; durations in seconds, by group and by update."""

    def __init__(self, slots: int, group: Callable[[int], float], update: Callable[[int], float]) -> None:
        self._free = [0.0] * slots
        self._group, self._update = group, update
        self._trained = [0.0]  # by version, when its weights exist
        self._generating = 0.0
        self._training = 0.0

    def accepts(self, now: float) -> bool:
        """Whether a slot is free."""
        return self._free[0] <= now

    def dispatch(self, numbers: Sequence[int], version: int, now: float) -> Sequence[tuple[float, Sequence[int]]]:
        """Each group in the slot that is free first."""
        done = []
        for number in numbers:
            start, seconds = max(now, heapq.heappop(self._free), self._trained[version]), self._group(number)
            heapq.heappush(self._free, start + seconds)
            self._generating += seconds
            done.append((start + seconds, (number,)))
        return done

    def train(self, batch: QueueBatch, now: float) -> float:
        """After the update before."""
        seconds = self._update(batch.update)
        self._training += seconds
        self._trained.append(max(now, self._trained[-1]) + seconds)
        return self._trained[-1]

    def busy(self) -> tuple[float, float]:
        """Of a slot on average, and of the trainer."""
        return self._generating / len(self._free), self._training


@dataclass(frozen=True, slots=True)
class Simulation:
    """What was decided, and when updates ended; ``dropped`` and ``lost`` count groups."""

    spec: QueueSpec
    decisions: tuple[Decision, ...]
    batches: tuple[QueueBatch, ...]
    ends: tuple[float, ...]
    dropped: int
    lost: int
    producer_seconds: float
    trainer_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds per step: the time of all updates by their number."""
        return self.ends[-1] / len(self.ends) if self.ends else 0.0

    @property
    def staleness(self) -> Mapping[int, int]:
        """How many trained groups had which staleness."""
        return Counter(staleness for batch in self.batches for staleness in batch.staleness)

    @property
    def dropped_share(self) -> float:
        """The share of groups that were made and then dropped or masked."""
        masked = sum(len(batch.masked) for batch in self.batches)
        made = self.dropped + sum(len(batch.groups) for batch in self.batches)
        return (self.dropped + masked) / made if made else 0.0

    @property
    def idle(self) -> tuple[float, float]:
        """The share of the time in which producers, and the trainer, had nothing to do."""
        end = self.ends[-1] if self.ends else 0.0
        return _idle(self.producer_seconds, end), _idle(self.trainer_seconds, end)


def _idle(busy: float, end: float) -> float:
    return max(0.0, 1.0 - busy / end) if end else 0.0


def simulate(
    spec: QueueSpec,
    world: World,
    updates: int,
    lost: Callable[[int], bool] = lambda number: False,
    prompts: Iterator[int] | None = None,
) -> Simulation:
    """What a queue decides, up to so many updates or the end of the prompts; ``lost`` says which groups a filter loses.

    Raises:
        HfError: HF762 where every group is lost, or nothing can happen any more although prompts and updates are left.
    """
    prompts = iter(prompts) if prompts is not None else count()
    state, now, idle_from = QueueState(spec), 0.0, 0.0
    events: list[tuple[float, int, Sequence[int]]] = []  # when, in which order, which groups
    decisions, batches, ends, order = list[Decision](), list[QueueBatch](), list[float](), count()
    dropped = losses = losses_in_a_row = 0
    exhausted = False
    while len(batches) < updates:
        while not exhausted and state.admits(spec.dispatch) and (spec.late == "wait" or world.accepts(now)):
            chosen = _next_prompts(state, prompts)
            if exhausted := len(chosen) < spec.dispatch:
                break
            before, state = state, state.dispatch(chosen)
            decisions.append(dispatch_decision(before, state))
            numbers = range(before.dispatched, state.dispatched)
            for time, done in world.dispatch(numbers, before.version, now):
                heapq.heappush(events, (time, next(order), done))
        if idle_from <= now:
            before = state
            state, batch = state.take()
            decisions += take_decisions(before, state, batch)
            dropped += len(state.dropped)
            if batch is not None:
                batches.append(batch)
                idle_from = world.train(batch, now)
                ends.append(idle_from)
                heapq.heappush(events, (idle_from, next(order), ()))
                continue
            if state.dropped:
                continue  # their places are free
        if not events:
            if exhausted:
                break
            raise stalled(state)
        now = events[0][0]
        while events and events[0][0] == now:
            _, _, done = heapq.heappop(events)
            gone = [number for number in done if lost(number)]
            state, losing = _ended(state, done, gone)
            decisions += losing
            losses += len(gone)
            losses_in_a_row = losses_in_a_row + len(gone) if len(gone) == len(done) else 0
        if losses_in_a_row > STARVED * spec.places:
            raise starved(state, losses_in_a_row)
    generating, training = world.busy()
    return Simulation(
        spec=spec,
        decisions=tuple(decisions),
        batches=tuple(batches),
        ends=tuple(ends),
        dropped=dropped,
        lost=losses,
        producer_seconds=generating,
        trainer_seconds=training,
    )


def _ended(state: QueueState, done: Sequence[int], gone: Sequence[int]) -> tuple[QueueState, list[Decision]]:
    """The state once groups are done, some of which a filter loses."""
    state = state.finish(number for number in done if number not in gone)
    return (state.lose(gone), [lose_decision(state, gone)]) if gone else (state, [])


STARVED = 100
"""After so many times the places of a queue were lost without a group between, the reader waits in vain."""


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


def _next_prompts(state: QueueState, prompts: Iterator[int]) -> list[int]:
    """The prompts to dispatch: first those of groups that were dropped."""
    chosen = list(state.again[: state.spec.dispatch])
    while len(chosen) < state.spec.dispatch and (prompt := next(prompts, None)) is not None:
        chosen.append(prompt)
    return chosen
