"""A simulated run of a plan with queues on a virtual clock, from the seconds that each node takes on a cluster.

A worked example: an engine of two ranks generates, a queue of lag 1 follows, an actor of one rank trains. Generation
takes 4 s on rank 0 and 2 s on rank 1, an update 3 s; what the actor sends to the engine takes no time::

    seconds     0        2        4        6        8        11       14
    engine 0    [generate 0     ][generate 1     ][generate 2 ...
    engine 1    [generate 0][generate 1]           [generate 2][ ...
    actor                        [update 0    ]    [update 1  ] ...

Rank 1 of the engine finishes step 1 at 4 s, and then waits for the weights of update 0, which ends at 7 s; rank 0
generates until 8 s. Update 1 needs both. So a step takes 4 s from then on, instead of 7 s when generation and update
run one after another.

The schedule is that of a run (``StageOrder``, so nothing is ever late). Every rank runs its calls in the order of
submission, each as soon as its inputs exist. If several calls of a method may be in progress in a process, a rank
begins another one as soon as fewer than that are. In the simulation, calls that overlap slow down neither each other
nor anything else on their device, so their seconds should be those of calls that overlap: with the seconds of a call
that has its engine to itself, a step comes out too fast. Rows are read chunk by chunk: a rank waits for the chunks of a
value that hold its rows and, behind a filter, for everything that the filter reads. Ranks of a method that writes or
exports a state work together: they begin and end together. Transfers between processes take no time. The driver submits
nothing that follows a result before the result exists.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hfdsl.deploy.pools import devices
from hfdsl.graph.columns import columns_read, origins
from hfdsl.graph.program import Filter, Queue, Ref
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.concurrency import calls_at_once
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.timeline import Interval, Timeline
from hfdsl.protocols.queueing import Late
from hfdsl.protocols.state import effects_of
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.streaming import StageOrder
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.runtime.simulation import Simulation, Slots, simulate

P99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


class CallSeconds(Protocol):
    """The duration of calls of a node."""

    def of(self, *call: object) -> float:
        """The seconds of a call; the same call always takes the same time."""
        ...


@dataclass(frozen=True, slots=True)
class DrawnSeconds:
    """A lognormal distribution of ``median`` seconds, whose 99th percentile is ``tail`` times as long.

    >>> DrawnSeconds(2.0).of("actor.update", 7), 1.0 < DrawnSeconds(2.0, tail=3.0).of("actor.update", 7) < 12.0
    (2.0, True)
    """

    median: float
    tail: float = 1.0

    def of(self, *call: object) -> float:
        """The seconds of a call."""
        if self.tail == 1.0:
            return self.median
        return self.median * _stream(call).lognormvariate(0.0, math.log(self.tail) / P99)


@dataclass(frozen=True, slots=True)
class RecordedSeconds:
    """Durations of calls in an earlier run; each call takes one of them, drawn at random."""

    seconds: tuple[float, ...]

    def of(self, *call: object) -> float:
        """The seconds of a call."""
        return self.seconds[0] if len(self.seconds) == 1 else _stream(call).choice(self.seconds)


def _stream(call: Iterable[object]) -> random.Random:
    return random.Random(" ".join(map(str, call)))


def recorded_seconds(plan: Plan, steps: Iterable[Timeline]) -> dict[str, RecordedSeconds]:
    """The duration of each node's calls in measured steps.

    If ranks work together, a duration lasts from the last start to the last end; otherwise each rank has its own.
    """
    together = {step.label for step in plan.steps if works_together(step)}
    seconds: dict[str, list[float]] = {}
    for timeline in steps:
        by_name: dict[str, list[Interval]] = {}
        for call in timeline.calls:
            by_name.setdefault(call.name, []).append(call)
        for name, calls in by_name.items():
            if name in together:
                span = max(call.stop for call in calls) - max(call.start for call in calls)
                seconds.setdefault(name, []).append(max(span, 0.0))
            else:
                seconds.setdefault(name, []).extend(call.stop - call.start for call in calls)
    return {name: RecordedSeconds(tuple(measured)) for name, measured in seconds.items()}


@dataclass(frozen=True, slots=True)
class PlanSimulation:
    """Simulated steps: the time of each result, the decisions of queues, and the busy seconds of groups."""

    results: tuple[float, ...]
    decisions: tuple[Decision, ...]
    busy: Mapping[str, float]
    end: float

    @property
    def seconds(self) -> float:
        """Seconds per step, averaged over all steps."""
        return self.results[-1] / len(self.results)

    @property
    def staleness(self) -> Mapping[int, int]:
        """The number of batches read at each staleness, over all queues."""
        versions = {(d.queue, group): d.version for d in self.decisions if d.kind == "dispatch" for group in d.groups}
        taken_groups = [(d, group) for d in self.decisions if d.kind == "take" for group in d.groups]
        return Counter(decision.version - versions[decision.queue, group] for decision, group in taken_groups)

    @property
    def idle(self) -> Mapping[str, float]:
        """The share of time in which the processes of each group were idle, averaged over ranks."""
        return {group: max(0.0, 1.0 - seconds / self.end) if self.end else 0.0 for group, seconds in self.busy.items()}


def with_lag(plan: Plan, lag: int | None) -> Plan:
    """The plan with another lag for its queues; with None, without queues, so that steps run one after another."""
    nodes = tuple(
        replace(node, op=replace(node.op, lag=lag, late=None if lag is None else node.op.late))
        if isinstance(node.op, Queue) and node.op.splits
        else node
        for node in plan.graph.nodes
    )
    return replace(plan, graph=replace(plan.graph, nodes=nodes))


def simulate_groups(
    plan: Plan,
    late: Late,
    groups: int,
    slots: int,
    seconds: Mapping[str, CallSeconds],
    steps: int,
    seed: int = 0,
    keep: float = 1.0,
) -> Simulation:
    """The decisions of a plan's first queue under a discipline, if producers finish its groups one by one.

    A batch has ``groups`` groups, and ``slots`` groups are in progress at a time. A group takes the seconds of the
    calls that feed the queue, one after another; an update takes the seconds of the stage that reads it. A filter keeps
    each group with the probability ``keep``.

    Raises:
        HfError: HF762 if nothing can happen any more.
    """
    node, queue = plan.split.queues[0]
    feeds, reads = plan.split.producer(node), plan.split.of[node.id]

    def stage_seconds(stage: int, number: int) -> float:
        calls = (step.label for step in plan.steps if plan.split.of[step.node] == stage)
        return sum(seconds[label].of(seed, label, number) for label in calls if label in seconds)

    producers = Slots(slots, lambda number: stage_seconds(feeds, number), lambda update: stage_seconds(reads, update))
    spec = QueueSpec("queue", queue.lag or 0, late, groups)
    return simulate(spec, producers, steps, lambda number: _stream((seed, "filter", number)).random() >= keep)


def simulate_plan(plan: Plan, seconds: Mapping[str, CallSeconds], steps: int, seed: int = 0) -> PlanSimulation:
    """Simulate steps of a plan; nodes without ``seconds`` take no time."""
    at_once = {step.node: calls for step in plan.steps if (calls := calls_at_once(plan, step)) > 1}
    clock, order = PlanClock(plan, seconds, seed, at_once=at_once), StageOrder(plan, 0)
    results, decisions, now = list[float](), list[Decision](), 0.0
    while (stage := order.next(prompts=max(order.steps) < steps)) is not None:
        step = order.steps[stage]
        clock.submit(stage, step, now)
        decisions += order.submit(stage)
        if min(order.steps) > step:
            now = clock.result(step) if plan.split.queues else clock.end
            results.append(now)
    return PlanSimulation(tuple(results), tuple(decisions), clock.busy(), clock.end)


@dataclass(slots=True)
class PlanClock:
    """The times when each rank is free, and when the chunks of each value of each step exist."""

    plan: Plan
    seconds: Mapping[str, CallSeconds]
    seed: int
    free: dict[tuple[str, int], float] = field(default_factory=dict)  # by device
    chunks: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # by step and node
    spans: dict[tuple[int, int], dict[int, tuple[float, float]]] = field(default_factory=dict)  # the same, by rank
    fences: dict[tuple[str | None, int], float] = field(default_factory=dict)  # by role and rank, of its last weights
    at_once: Mapping[int, int] = field(default_factory=dict)  # by node, of which several calls may be in progress
    ends: dict[tuple[int, int], list[float]] = field(default_factory=dict)  # by such a node and rank, of all its calls
    work: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    end: float = 0.0
    _read_by_filters: dict[int, frozenset[int]] = field(default_factory=dict)

    def submit(self, stage: int, number: int, now: float) -> None:
        """Run the calls of a stage, in program order."""
        for step in self.plan.steps:
            if self.plan.split.of[step.node] == stage:
                self._run(step, number, now)

    def _run(self, step: Step, number: int, now: float) -> None:
        if self.plan.loads_in_flight(step):
            self._arrive(step, number, now)
            return
        places = [self._device(step.group, rank) for rank in step.ranks]
        ready = [
            max([now, self._begins(step, rank, place), self._fence(step, rank), *self._inputs(step, number, chunk)])
            for place, rank, chunk in zip(places, step.ranks, step.chunk_of, strict=True)
        ]
        call_seconds = self.seconds.get(step.label, DrawnSeconds(0.0))
        if works_together(step):
            ready = [max(ready)] * len(ready)
            takes = [call_seconds.of(self.seed, step.label, number)] * len(ready)
        else:
            takes = [call_seconds.of(self.seed, step.label, number, rank) for rank in step.ranks]
        ends = dict[int, float]()
        for rank, place, start, duration in zip(step.ranks, places, ready, takes, strict=True):
            ends[rank] = start + duration
            self.work[step.group] += self._occupy(step, rank, place, start, ends[rank])
            self.end = max(self.end, ends[rank])
        self.spans[number, step.node] = {
            rank: (start, ends[rank]) for rank, start in zip(step.ranks, ready, strict=True)
        }
        last = max(ends.values())
        self.chunks[number, step.node] = [ends.get(holder, last) for holder in step.layout.holders]

    def _begins(self, step: Step, rank: int, place: tuple[str, int]) -> float:
        """The time when a rank may begin another call of a step."""
        if step.node not in self.at_once:
            return self.free.get(place, 0.0)
        last = sorted(self.ends.get((step.node, rank), ()))[-self.at_once[step.node] :]
        return last[0] if len(last) == self.at_once[step.node] else 0.0

    def _occupy(self, step: Step, rank: int, place: tuple[str, int], start: float, stop: float) -> float:
        """Run a call on a rank; return the seconds during which it ran no other call."""
        if step.node not in self.at_once:
            self.free[place] = stop
            return stop - start
        ends = self.ends.setdefault((step.node, rank), [])
        busy = max(ends, default=0.0)
        ends.append(stop)
        return max(0.0, stop - max(start, busy))

    def _arrive(self, step: Step, number: int, now: float) -> None:
        """Deliver weights in flight while the ranks continue their work."""
        call_seconds = self.seconds.get(step.label, DrawnSeconds(0.0))
        spans = self.spans[number, step.node] = {}
        for rank, chunk in zip(step.ranks, step.chunk_of, strict=True):
            start = max([now, *self._inputs(step, number, chunk)])
            spans[rank] = start, start + call_seconds.of(self.seed, step.label, number, rank)
            self.fences[step.role, rank] = spans[rank][1]
            self.end = max(self.end, spans[rank][1])

    def _fence(self, step: Step, rank: int) -> float:
        """The arrival time of the weights in flight that were sent before a call, for which the call waits."""
        return 0.0 if step.role is None else self.fences.get((step.role, rank), 0.0)

    def _device(self, group: str, rank: int) -> tuple[str, int]:
        pool = next((process_group.pool for process_group in self.plan.groups if process_group.name == group), None)
        return devices(pool)[rank] if pool is not None else (group, rank)

    def _inputs(self, step: Step, number: int, chunk: int) -> Iterator[float]:
        """The time when a step's inputs exist: the chunks with its rows, and the inputs of filters before it."""
        for node in {node for node, _ in columns_read(self.plan.graph, step.node)}:
            yield from _overlapping(self.chunks.get((number, node), ()), chunk, step.chunks)
        for node in self._filters_read(step.node):
            yield from self.chunks.get((number, node), ())

    def _filters_read(self, node: int) -> frozenset[int]:
        """The values that decide which rows the filters before a node keep, within its stage."""
        if node not in self._read_by_filters:
            here, sources = self.plan.node(node), set[int]()
            for ref in here.refs if not (isinstance(here.op, Queue) and here.op.splits) else ():
                sources |= self._filters_read(ref.node)
            keep = dict(here.arguments)["keep"] if isinstance(here.op, Filter) else None
            if isinstance(keep, Ref):
                sources |= {source for source, _ in origins(self.plan.graph, keep.node, keep.column or VALUE)}
            self._read_by_filters[node] = frozenset(sources)
        return self._read_by_filters[node]

    def result(self, number: int) -> float:
        """The time when the result of a step exists."""
        nodes = {node for ref in self.plan.graph.output.refs() for node in self._made_by(ref.node)}
        return max((time for node in nodes for time in self.chunks.get((number, node), ())), default=self.end)

    def _made_by(self, node: int) -> Iterator[int]:
        if any(step.node == node for step in self.plan.steps):
            yield node
        else:
            for ref in self.plan.node(node).refs:
                yield from self._made_by(ref.node)

    def busy(self) -> dict[str, float]:
        """Seconds of work per rank of each group, averaged over its ranks."""
        return {group.name: self.work[group.name] / group.pool.world_size for group in self.plan.groups}


def _overlapping(times: Sequence[float], chunk: int, chunks: int) -> Iterator[float]:
    """The times of a value's chunks that share rows with a reader's chunk.

    >>> list(_overlapping([1.0, 2.0, 3.0, 4.0], 0, 2)), list(_overlapping([1.0, 2.0], 2, 3))
    ([1.0, 2.0], [2.0])
    """
    for position, time in enumerate(times):
        if position * chunks < (chunk + 1) * len(times) and chunk * len(times) < (position + 1) * chunks:
            yield time


def works_together(step: Step) -> bool:
    """Whether the ranks of a step wait for each other, as in a method that trains or sends a state."""
    if step.role is None:
        return False
    return any(effect.kind in ("writes", "exports") for effect in effects_of(step.signature.body))
