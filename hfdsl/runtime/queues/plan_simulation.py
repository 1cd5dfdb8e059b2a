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

The schedule is that of a run without dynamic queues (``StageOrder``, so nothing is ever late;
``queue_simulation`` has the others). Every rank runs its calls in the order of
submission, each as soon as its inputs exist. If several calls of a method may be in progress in a process, a rank
begins another one as soon as fewer than that are. Calls of different processes on one device, and calls at once in one
engine, share it by their utilization (``virtual_clock``); unless that is given, a call is taken to occupy all of both.
Rows are read chunk by chunk: a rank waits for the chunks of a value that hold its rows and, behind a filter, for
everything that the filter reads. Ranks of a method that writes or exports a state work together: they begin and end
together, all of them as slow as on the slowest device. So do a load and the processes that send its weights from the
memory in which they train (``weight_senders``): if the engine above has such a load, update 1 also waits until it has
generated step 1, whatever the lag. Other transfers between processes take no time, and a load of weights in flight
slows down no call. The driver submits nothing that follows a result before the result exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hfdsl.deploy.pools import ResourcePool, devices
from hfdsl.errors import WiringError
from hfdsl.graph.columns import columns_read, origins
from hfdsl.graph.program import Filter, Queue, Ref
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.concurrency import calls_at_once
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.queues import training_calls
from hfdsl.plan.timeline import Interval, Timeline, TraceFile, node_stages
from hfdsl.plan.weight_senders import weight_senders
from hfdsl.protocols.state import effects_of
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.durations import CallSeconds, DrawnSeconds, RecordedSeconds, Utilization, is_duration
from hfdsl.runtime.queues.streaming import StageOrder
from hfdsl.runtime.queues.virtual_clock import ServerKey, VirtualCall, VirtualClock
from hfdsl.types.numbers import brief

__all__ = [
    "DrawnSeconds",
    "PlanCalls",
    "PlanSimulation",
    "RecordedSeconds",
    "recorded_seconds",
    "simulate_plan",
    "with_lag",
]


def recorded_seconds(plan: Plan, steps: Iterable[Timeline]) -> dict[str, RecordedSeconds]:
    """The duration of each node's calls in measured steps.

    If ranks work together, a duration lasts from the last start to the last end; otherwise each rank has its own.
    """
    sent = weight_senders(plan)
    together = {step.label for step in plan.steps if works_together(step, sent)}
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
    """Simulated steps: the time of each result, the decisions of queues, and the busy seconds of groups.

    ``staleness`` counts what the last queues hand on by the updates since the first stage on its way dispatched it:
    batches, or groups with dynamic queues. Of these, ``dropped`` has for each queue the share of the groups that ended
    which were dropped or masked, and ``lost`` the share that a filter lost.
    """

    results: tuple[float, ...]
    decisions: tuple[Decision, ...]
    staleness: Mapping[int, int]
    busy: Mapping[str, float]
    end: float
    dropped: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds per step, averaged over all steps."""
        return self.results[-1] / len(self.results)

    @property
    def idle(self) -> Mapping[str, float]:
        """The share of time in which the processes of each group were idle, averaged over ranks."""
        return {group: max(0.0, 1.0 - seconds / self.end) if self.end else 0.0 for group, seconds in self.busy.items()}


def with_lag(plan: Plan, lag: int | None, queue: int | None = None) -> Plan:
    """The plan with another lag for its queues, or for the node of a single one.

    With None it has no queues, so that steps run one after another.
    """
    nodes = tuple(
        replace(node, op=replace(node.op, lag=lag, late=None if lag is None else node.op.late))
        if isinstance(node.op, Queue) and node.op.splits and queue in (None, node.id)
        else node
        for node in plan.graph.nodes
    )
    return replace(plan, graph=replace(plan.graph, nodes=nodes))


def simulate_plan(
    plan: Plan, seconds: Mapping[str, CallSeconds], steps: int, seed: int = 0, trace: TraceFile | None = None
) -> PlanSimulation:
    """Simulate steps of a plan; nodes without ``seconds`` take no time. An open ``trace`` gets their timelines."""
    clock = VirtualClock()
    at_once = {step.node: number for step in plan.steps if (number := calls_at_once(plan, step)) > 1}
    calls, order = PlanCalls(plan, seconds, seed, clock, at_once), StageOrder(plan, 0)
    results, decisions = list[float](), list[Decision]()
    versions, staleness = dict[tuple[int, int], int](), Counter[int]()  # by first stage and step; of batches
    while (stage := order.next(prompts=max(order.steps) < steps)) is not None:
        step = order.steps[stage]
        calls.submit(stage, step)
        versions[stage, step] = min(order.steps)
        staleness.update(step - versions[source, step] for source in order.sources_of(stage))
        decisions += order.submit(stage)
        if min(order.steps) > step:
            clock.run(calls.result(step) if plan.split.queues else None)
            results.append(clock.now)
    clock.run()
    if trace is not None:
        for timeline in calls.timelines():
            trace.add(timeline)
    busy = {group.name: clock.busy(group.name) / group.pool.world_size for group in plan.groups}
    return PlanSimulation(tuple(results), tuple(decisions), staleness, busy, clock.now)


@dataclass(frozen=True, slots=True)
class _Part:
    """The ranks of a step whose call is one call on the clock: a single rank, or all ranks if they work together.

    ``reads`` are the chunks that it waits for, as node and position, and ``drawn_by`` what its duration depends on.
    """

    ranks: tuple[int, ...]
    drawn_by: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    servers: tuple[ServerKey, ...]
    devices: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class PlanCalls:
    """The calls of a plan's steps on a virtual clock.

    ``at_once`` has the nodes of which several calls may be in progress in a process, ``fences`` by role and rank the
    last load of weights in flight, for which later calls wait.
    """

    plan: Plan
    seconds: Mapping[str, CallSeconds]
    seed: int
    clock: VirtualClock
    at_once: Mapping[int, int] = field(default_factory=dict)
    fences: dict[tuple[str | None, int], VirtualCall] = field(default_factory=dict)
    calls: dict[tuple[int, int], Mapping[int, VirtualCall]] = field(default_factory=dict)  # by step, node and rank
    chunks: dict[tuple[int, int], Sequence[Sequence[VirtualCall]]] = field(default_factory=dict)  # by step and node
    _parts: dict[int, Sequence[_Part]] = field(default_factory=dict)
    _steps: dict[int, Step] = field(init=False)
    _pools: dict[str, ResourcePool] = field(init=False)
    _senders: Mapping[int, Sequence[Process]] = field(init=False)

    def __post_init__(self) -> None:
        self._steps = {step.node: step for step in self.plan.steps}
        self._pools = {group.name: group.pool for group in self.plan.groups}
        self._senders = weight_senders(self.plan)

    def submit(self, stage: int, number: int) -> None:
        """Submit the calls of a stage's step, in program order."""
        for step in self.plan.steps:
            if self.plan.split.of[step.node] == stage:
                self._submit(step, number)

    def _submit(self, step: Step, number: int) -> None:
        if step.node not in self._parts:
            self._parts[step.node] = tuple(self._parts_of(step))
        call_seconds = self.seconds.get(step.label, DrawnSeconds(0.0))
        share = call_seconds if isinstance(call_seconds, Utilization) else Utilization()
        in_flight, by_rank = self.plan.loads_in_flight(step), dict[int, VirtualCall]()
        for part in self._parts[step.node]:
            after = [call for node, position in part.reads for call in self.chunks[number, node][position]]
            fences = (self.fences.get((step.role, rank)) for rank in part.ranks if not in_flight)
            duration = call_seconds.of(self.seed, step.label, number, *part.drawn_by)
            if not is_duration(duration):
                text = f"the duration of '{step.label}' in step {number} is {brief(duration)}"
                raise WiringError(
                    "HF202", f"{text}; {type(call_seconds).__name__}.of(*call) returns seconds, at least 0"
                )
            call = self.clock.submit(
                duration,
                after=(*after, *filter(None, fences)),
                servers=part.servers,
                at_once=self.at_once.get(step.node, 1),
                devices=part.devices,
                sharing=share.sharing,
                engine_utilization=share.engine_utilization,
            )
            by_rank |= dict.fromkeys(part.ranks, call)
        if in_flight:
            self.fences |= {(step.role, rank): call for rank, call in by_rank.items()}
        every = tuple(dict.fromkeys(by_rank.values()))
        self.calls[number, step.node] = by_rank
        self.chunks[number, step.node] = [
            (by_rank[holder],) if holder in by_rank else every for holder in step.layout.holders
        ]

    def _parts_of(self, step: Step) -> Iterator[_Part]:
        in_flight, node = self.plan.loads_in_flight(step), step.node if step.node in self.at_once else None
        pool = self._pools.get(step.group)
        of_group = devices(pool) if pool is not None else [(step.group, rank) for rank in range(max(step.ranks) + 1)]
        senders = [(group, rank, None) for group, rank in self._senders.get(step.node, ())]
        together = works_together(step, self._senders) and not in_flight
        for ranks in [step.ranks] if together else [(rank,) for rank in step.ranks]:
            chunks = {chunk for rank, chunk in zip(step.ranks, step.chunk_of, strict=True) if rank in ranks}
            yield _Part(
                ranks=ranks,
                drawn_by=() if together else ranks,
                reads=tuple(sorted({read for chunk in chunks for read in self._reads(step, chunk)})),
                servers=() if in_flight else (*((step.group, rank, node) for rank in ranks), *senders),
                devices=() if in_flight else tuple(of_group[rank] for rank in ranks),
            )

    def _reads(self, step: Step, chunk: int) -> Iterator[tuple[int, int]]:
        """The chunks that a rank waits for: those with its rows, and the inputs of filters before it."""
        for node in {node for node, _ in columns_read(self.plan.graph, step.node)} & self._steps.keys():
            count = len(self._steps[node].layout.holders)
            yield from ((node, position) for position in _overlapping(count, chunk, step.chunks))
        for node in self._filters_read(step.node) & self._steps.keys():
            yield from ((node, position) for position in range(len(self._steps[node].layout.holders)))

    def _filters_read(self, node: int) -> set[int]:
        """The values that decide which rows the filters before a node keep, within its stage."""
        sources, waiting, seen = set[int](), [node], set[int]()
        while waiting:
            node_before = self.plan.node(waiting.pop())
            if node_before.id in seen:
                continue
            seen.add(node_before.id)
            if not (isinstance(node_before.op, Queue) and node_before.op.splits):
                waiting += [ref.node for ref in node_before.refs]
            keep = dict(node_before.arguments)["keep"] if isinstance(node_before.op, Filter) else None
            if isinstance(keep, Ref):
                sources |= {source for source, _ in origins(self.plan.graph, keep.node, keep.column or VALUE)}
        return sources

    def forget(self, number: int) -> None:
        """Forget the calls of a step, whose results nothing waits for."""
        for node in self._steps:
            self.calls.pop((number, node), None)
            self.chunks.pop((number, node), None)

    def timelines(self) -> Iterator[Timeline]:
        """The calls that began before now, step by step; those that have not ended last until now."""
        labels, stages = {node: step.label for node, step in self._steps.items()}, node_stages(self.plan)
        by_step: dict[int, list[Interval]] = {}
        for (number, node), by_rank in sorted(self.calls.items()):
            for rank, call in by_rank.items() if self._steps[node].group in self._pools else ():
                stop = self.clock.now if call.end is None else call.end
                if call.start is not None and (call.end is not None or call.start < stop):
                    interval = Interval((self._steps[node].group, rank), "call", labels[node], call.start, stop)
                    by_step.setdefault(number, []).append(interval)
        for number, intervals in by_step.items():
            start, stop = min(each.start for each in intervals), max(each.stop for each in intervals)
            yield Timeline(self.plan.name, number, start, stop, tuple(intervals), stages=stages)

    def result(self, number: int) -> list[VirtualCall]:
        """The calls that make the result of a step; without one those that train, or all of its calls."""
        nodes = {node for ref in self.plan.graph.output.refs() for node in self._made_by(ref.node)}
        makers = [call for node in nodes for chunk in self.chunks.get((number, node), ()) for call in chunk]
        return makers or self._calls_of(number, training_calls(self.plan)) or self._calls_of(number, self._steps)

    def _calls_of(self, number: int, nodes: Iterable[int]) -> list[VirtualCall]:
        return [call for node in nodes for call in self.calls.get((number, node), {}).values()]

    def _made_by(self, node: int) -> Iterator[int]:
        if node in self._steps:
            yield node
        else:
            for ref in self.plan.node(node).refs:
                yield from self._made_by(ref.node)


def _overlapping(count: int, chunk: int, chunks: int) -> Iterator[int]:
    """The positions of a value's chunks, ``count`` of them, that share rows with a reader's chunk.

    >>> list(_overlapping(4, 0, 2)), list(_overlapping(2, 2, 3))
    ([0, 1], [1])
    """
    for position in range(count):
        if position * chunks < (chunk + 1) * count and chunk * count < (position + 1) * chunks:
            yield position


def works_together(step: Step, sent: Collection[int]) -> bool:
    """Whether the ranks of a step wait for each other, as in a method that trains or sends a state.

    So do those of the ``sent`` loads, whose weights come from where they train.
    """
    if step.role is None:
        return False
    effects = effects_of(step.signature.body)
    return step.node in sent or any(effect.kind in ("writes", "exports") for effect in effects)
