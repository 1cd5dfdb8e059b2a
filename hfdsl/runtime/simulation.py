"""A queue on a virtual clock: the decisions of a cluster, and the time of its steps.

A worked example. Four slots generate, one prompt each; a batch has four groups, and an update takes 1 s. Every fourth
group takes 9 s, the others 1 s. Synchronously a step takes 10 s, for its longest group and the update:

>>> def simulated(lag, late):
...     spec = QueueSpec("scored", lag=lag, late=late, batch=4)
...     return simulate(spec, Slots(4, lambda number: 9.0 if number % 4 == 3 else 1.0, lambda update: 1.0), updates=8)
>>> simulated(0, "wait").seconds
10.0

With a lag of two, slots continue with other prompts, and the trainer waits less:

>>> simulated(2, "wait").seconds, simulated(2, "refill").seconds
(4.25, 3.25)

Under "wait" decisions do not depend on times, so a run of the same program decides the same:

>>> even = simulate(QueueSpec("scored", 2, "wait", 4), Slots(1, lambda number: 1.0, lambda update: 1.0), updates=8)
>>> even.decisions == simulated(2, "wait").decisions
True

The loop is that of a run (``QueueLoop``). Unless the queue waits in order, a prompt is kept until a slot is free, and
dispatched under newer weights. A dispatch under version v begins no sooner than the v-th update has ended,
since its weights do not exist before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.loop import QueuedId, QueueLoop
from hfdsl.runtime.schedule import QueueBatch, QueueSpec, QueueState


class World(Protocol):
    """The producers of groups, and the trainer: everything that takes time."""

    def accepts(self, now: float) -> bool:
        """Whether a producer can begin another dispatch now."""
        ...

    def dispatch(self, numbers: Sequence[int], version: int, now: float) -> Sequence[tuple[float, Sequence[int]]]:
        """The time when each group of a dispatch ends; the weights of ``version`` exist after as many updates."""
        ...

    def train(self, batch: QueueBatch, now: float) -> float:
        """The time when the update on this batch ends."""
        ...

    def busy(self) -> tuple[float, float]:
        """The seconds of work so far: of a producer, averaged over producers, and of the trainer."""
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
        """Put each group into the slot that is free first."""
        completions = []
        for number in numbers:
            start, seconds = max(now, heapq.heappop(self._free), self._trained[version]), self._group(number)
            heapq.heappush(self._free, start + seconds)
            self._generating += seconds
            completions.append((start + seconds, (number,)))
        return completions

    def train(self, batch: QueueBatch, now: float) -> float:
        """Begin the update after the previous one."""
        seconds = self._update(batch.update)
        self._training += seconds
        self._trained.append(max(now, self._trained[-1]) + seconds)
        return self._trained[-1]

    def busy(self) -> tuple[float, float]:
        """The seconds of work of a slot, on average, and of the trainer."""
        return self._generating / len(self._free), self._training


@dataclass(frozen=True, slots=True)
class Simulation:
    """The decisions of a simulation, and the times of its updates; ``dropped`` and ``lost`` count groups."""

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
        """Seconds per step: the time of all updates divided by their number."""
        return self.ends[-1] / len(self.ends) if self.ends else 0.0

    @property
    def staleness(self) -> Mapping[int, int]:
        """The number of trained groups at each staleness."""
        return Counter(staleness for batch in self.batches for staleness in batch.staleness)

    @property
    def dropped_share(self) -> float:
        """The share of the finished groups that were dropped or masked."""
        masked = sum(len(batch.masked) for batch in self.batches)
        groups = self.dropped + sum(len(batch.groups) for batch in self.batches)
        return (self.dropped + masked) / groups if groups else 0.0

    @property
    def idle(self) -> tuple[float, float]:
        """The share of time in which producers, and the trainer, were idle."""
        end = self.ends[-1] if self.ends else 0.0
        return _idle(self.producer_seconds, end), _idle(self.trainer_seconds, end)


def _idle(busy: float, end: float) -> float:
    return max(0.0, 1.0 - busy / end) if end else 0.0


def simulate(
    spec: QueueSpec,
    world: World,
    updates: int,
    lost: Callable[[int], bool] = lambda _: False,
    prompts: Iterator[int] | None = None,
) -> Simulation:
    """The decisions of a queue, up to ``updates`` or the end of the prompts; a filter loses the groups in ``lost``.

    Raises:
        HfError: HF762 if every group is lost, or nothing can happen any more although prompts and updates are left.

    >>> spec, slots = QueueSpec("scored", lag=1, batch=2), Slots(2, lambda number: 3.0, lambda update: 2.0)
    >>> simulated = simulate(spec, slots, updates=3)
    >>> simulated.ends, dict(simulated.staleness)
    ((5.0, 8.0, 11.0), {0: 2, 1: 4})
    """
    clock = _Clock(spec, world)
    loop = QueueLoop([QueueState(spec)])
    decisions = list[Decision]()
    numbers = iter(prompts) if prompts is not None else count()
    for decided in loop.run(clock, {0: numbers}, lambda group: lost(group[1])) if updates else ():
        decisions += decided
        if len(clock.batches) == updates:
            break
    generating, training = world.busy()
    return Simulation(
        spec=spec,
        decisions=tuple(decisions),
        batches=tuple(clock.batches),
        ends=tuple(clock.ends),
        dropped=sum(len(decision.groups) for decision in decisions if decision.kind == "drop"),
        lost=sum(len(decision.groups) for decision in decisions if decision.kind == "lose"),
        producer_seconds=generating,
        trainer_seconds=training,
    )


class _Clock:
    """A world with a clock, as the loop of a queue sees it."""

    def __init__(self, spec: QueueSpec, world: World) -> None:
        self.batches, self.ends = list[QueueBatch](), list[float]()
        self._spec, self._world = spec, world
        self._now = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Sequence[int]]] = []  # when, in which order, which groups

    def accepts(self, stage: int) -> bool:  # there is one
        return self._spec.late == "wait" or self._world.accepts(self._now)

    def dispatch(
        self,
        stage: int,  # there is one
        numbers: Sequence[int],
        prompts: Sequence[int],  # a World takes numbers
        version: int,
        batch: QueueBatch | None,  # there is no queue in front
    ) -> None:
        for time, completed in self._world.dispatch(numbers, version, self._now):
            heapq.heappush(self._events, (time, next(self._order), completed))

    def idle(self) -> bool:
        return not self.ends or self.ends[-1] <= self._now

    def train(self, batches: Sequence[QueueBatch]) -> None:
        [batch] = batches
        self.batches.append(batch)
        self.ends.append(self._world.train(batch, self._now))
        heapq.heappush(self._events, (self.ends[-1], next(self._order), ()))

    def ended(self) -> Sequence[QueuedId] | None:
        if not self._events:
            return None
        self._now, numbers = self._events[0][0], list[int]()
        while self._events and self._events[0][0] == self._now:
            numbers += heapq.heappop(self._events)[2]
        return [(0, number) for number in numbers]
