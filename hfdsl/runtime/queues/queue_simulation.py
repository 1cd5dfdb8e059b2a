"""A simulated run of a plan with dynamic queues: the decisions of a run on the virtual clock, without any bodies.

A worked example: an engine of two ranks makes one of the two groups of a dispatch each, in 4 s on rank 0 and 2 s on
rank 1. A queue with ``lag=1, late="drop"`` and batches of two groups follows, and an update takes 1 s::

    seconds     0      2      4    5      7    8
    engine 0    [group 0     ][group 2         ][group 4 ...
    engine 1    [group 1][group 3] [group 5][ ...
    actor                     [update 0]  [update 1]

Update 0 trains on the groups 0 and 1, update 1 on 3 and 5. Group 2 of version 0 ends under version 2, and is dropped.

Why a run and its simulation cannot differ. Both are the loop of queues (``QueueLoop``) on the same clock
(``VirtualTime``), with the row tables of the same plan. A run calls bodies, too, but no time and no decision depends on
their values, except for filters. So a simulation differs from a run on the virtual clock in what a filter keeps: a
share of the groups, drawn at random, which makes no call shorter. It also has several calls in progress at once where
processes have them (``times``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from hfdsl.errors import SizeError, WiringError
from hfdsl.plan.plan import Plan
from hfdsl.plan.queues import decides
from hfdsl.plan.timeline import TraceFile
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.inputs import check_is_plan
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.durations import CallSeconds, call_durations, random_stream
from hfdsl.runtime.queues.groups import are_known, dispatched_rows, queue_specs
from hfdsl.runtime.queues.loop import QueuedId, QueueLoop
from hfdsl.runtime.queues.plan_simulation import PlanSimulation, simulate_plan
from hfdsl.runtime.queues.stage_plans import QueueStages, queue_stages
from hfdsl.runtime.queues.tracing import queue_samples
from hfdsl.runtime.queues.virtual_time import VirtualTime
from hfdsl.runtime.schedule import QueueBatch, QueuedGroup, QueueState
from hfdsl.types.numbers import brief, checked_seed, count_range, is_count, is_number


def simulate_run(
    plan: Plan,
    seconds: Mapping[str, float | CallSeconds],
    steps: int,
    *,
    seed: int = 0,
    keep: float = 1.0,
    trace: TraceFile | None = None,
) -> PlanSimulation:
    """Simulate steps of a plan; nodes without ``seconds`` take no time, and a number is the time of every call.

    The filters in front of a queue keep each group with the probability ``keep``. An open ``trace`` gets the timelines
    of steps or, with dynamic queues, of stages, and the groups in queues.

    Raises:
        HfError: HF762 if a queue starves, HF765 if a run cannot follow its groups.
        SizeError: HF301 if the plan has no size for a dim of a queue's rows, HF760 if a queue would never fill a batch.
        WiringError: HF202 for a duration that is no number of seconds, a call that the plan does not have, or a number
            of ``steps`` or share to ``keep`` out of range; HF206 for what is no plan.
        ResourceError: HF932 for a ``seed`` that is none.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     x: hf.f32[B]
    >>> class Role(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def call(self, rows: Rows) -> Rows: ...
    >>> @hf.dataflow
    ... def flow(rows: Rows, engine: Role, actor: Role) -> Rows:
    ...     return actor.call(hf.queue(engine.call(rows), lag=1, late="drop"))
    >>> engine, actor = (hf.place(Role, pool=hf.ResourcePool([1], use_gpu=False)) for _ in range(2))
    >>> plan = flow.compile(hf.Deployment(engine=engine, actor=actor), dims={B: 4})
    >>> run = simulate_run(plan, {"engine.call": 4.0, "actor.call": 3.0}, steps=3)
    >>> run.results, run.dropped
    ((7.0, 11.0, 15.0), {'queue': 0.0})
    """
    check_is_plan(plan, "simulate_run")
    if not is_count(steps, least=0):
        raise WiringError("HF202", f"steps= of simulate_run is {count_range(steps, least=0)}, got {brief(steps)}")
    if not is_number(keep) or not 0 <= keep <= 1:
        raise WiringError("HF202", f"keep= of simulate_run is a number from 0 to 1, got {brief(keep)}")
    seed = checked_seed(seed, "seed= of simulate_run")
    durations = call_durations(plan, seconds, "seconds= of simulate_run")
    if not decides(plan):
        return simulate_plan(plan, durations, steps, seed, trace)
    stages = queue_stages(plan)
    if not all(are_known(queue, plan.dims) for queue in stages.queues):
        raise SizeError(
            "HF301", f"the rows in the queues of '{plan.name}' have dims without a size; compile with dims="
        )
    specs = queue_specs(stages, plan.dims)
    loop = QueueLoop([QueueState(spec) for spec in specs], stages.links)
    world = _SimulatedProcesses(
        plan, stages, loop, VirtualTime(stages, durations, seed, at_once=stages.in_flight_sync.at_once)
    )
    decisions = list[Decision]()

    def is_lost(group: QueuedId) -> bool:
        queue, number = group
        return specs[queue].loses and random_stream((seed, "filter", specs[queue].name, number)).random() >= keep

    for decided in loop.run(world, {stage: count() for stage in stages.links.sources}, is_lost):
        decisions += decided
        if trace is not None:
            for sample in queue_samples(plan.name, stages, loop.queues, decided, world.time.now):
                trace.add_queue(sample)
        if len(world.results) >= steps:
            break
    if trace is not None:
        for timeline in world.time.timelines():
            trace.add(timeline)
    dropped, lost, ended = _losses(decisions)
    return PlanSimulation(
        results=tuple(world.results),
        decisions=tuple(decisions),
        staleness=world.staleness,
        busy={group.name: world.time.busy(group.name) / group.pool.world_size for group in plan.groups},
        end=world.time.now,
        dropped={spec.name: dropped[spec.name] / max(1, ended[spec.name]) for spec in specs},
        lost={spec.name: lost[spec.name] / max(1, ended[spec.name] + lost[spec.name]) for spec in specs if spec.loses},
    )


def _losses(decisions: Sequence[Decision]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """The groups of each queue that were late, that a filter lost, and that left it with a batch or because of lag."""
    dropped, lost, ended = Counter[str](), Counter[str](), Counter[str]()
    for decision in decisions:
        groups = len(decision.groups)
        dropped[decision.queue] += groups if decision.kind == "drop" else len(decision.masked)
        lost[decision.queue] += groups if decision.kind == "lose" else 0
        ended[decision.queue] += groups if decision.kind in ("take", "drop") else 0
    return dropped, lost, ended


@dataclass(slots=True)
class _SimulatedProcesses:
    """The virtual clock as the loop of queues sees it: a ``QueueWorld`` without values.

    ``results`` has the time of each result; ``staleness`` counts trained groups by the updates since the first stage on
    their way dispatched them.
    """

    plan: Plan
    stages: QueueStages
    loop: QueueLoop
    time: VirtualTime
    results: list[float] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    _dispatches: Counter[int] = field(default_factory=Counter)  # by stage
    _last: dict[int, Dispatched] = field(default_factory=dict)  # by queue
    _updating: bool = False

    def accepts(self, stage: int) -> bool:
        return self.loop.waits_in_order(stage) or self.time.accepts(stage)

    def dispatch(
        self,
        stage: int,
        numbers: Sequence[int],
        prompts: Sequence[int],  # all prompts have rows alike
        version: int,
        batch: QueueBatch | None,  # its rows exist
    ) -> None:
        dispatches = dict[int, Dispatched]()
        for index in self.stages.links.fed_by(stage):
            queue, before = self.stages.queues[index], self._last.get(index)
            table = dispatched_rows(queue, self.plan.dims) if before is None else before.table
            dispatch = Dispatched(
                number=self._dispatches[stage],
                queue=queue,
                table=table,
                groups=tuple(numbers),
                sizes=self.plan.dims,
                version=version,
            )
            dispatch.know(before)
            dispatches[index] = self._last[index] = dispatch
        self.time.dispatched(stage, dispatches)
        self._dispatches[stage] += 1

    def idle(self) -> bool:
        return not self._updating and (not self.stages.loads_wait or self.time.filtered())

    def train(self, batches: Sequence[QueueBatch]) -> None:
        self._updating = True
        self.time.trained(batches[0].update, self.stages.last)
        for batch in batches:
            trained = (group for group in batch.groups if group.number not in batch.masked)
            self.staleness.update(batch.update - _first(group).version for group in trained)

    def ended(self) -> Sequence[QueuedId] | None:
        full = [stage for stage in self._dispatches if not self.loop.has_places(stage)]
        groups = self.time.ended(full)
        if self._updating and self.time.idle():
            self._updating = False
            self.results.append(self.time.now)
        return groups


def _first(group: QueuedGroup) -> QueuedGroup:
    """The group of the first queue from which a group is made."""
    return group if group.of is None else _first(group.of)
