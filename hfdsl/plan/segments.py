"""Segments: consecutive steps of the same processes become one call per rank, unless a reader would wait longer.

The example of ``hfdsl.plan.routes``, which ``tests/plan/test_worked_example.py`` checks: ``actor`` has two ranks,
``judge`` one, and ``centered`` is a function that runs in the judge's process::

    rollout = actor.generate(prompts)
    old = actor.log_probs(rollout.ids)
    scores = judge.score(rollout.ids)
    advantages = centered(scores)
    return actor.update(rollout, old, advantages)

    step       on     reads from elsewhere  result is read elsewhere by  call
    generate   actor  prompts               score                        1
    log_probs  actor                                                     2
    score      judge  rollout                                            3
    centered   judge                        update                       3
    update     actor  advantages                                         4

- ``centered`` joins ``score``. It reads nothing from elsewhere, and the only reader elsewhere of either result,
  ``update``, needs ``centered`` in any case.
- ``log_probs`` does not join ``generate``, although it reads nothing from elsewhere: the judge waits for the ids, and
  would wait for the log-probabilities too. (It joins once a run has measured that it takes less time than a call.)
- ``update`` does not join ``log_probs``: it reads the advantages, which are not there yet when ``log_probs`` begins.

Why no call waits longer. A payload leaves its process when the call that makes it ends, and a call begins when all that
it receives is there. Let a step S join the segment that begins with F.

- The segment begins no later than F alone would: a value that S reads from elsewhere is also read by an earlier step of
  the segment, or its producer is in ``before[F]``, the steps that have ended in any case when F begins.
- No reader elsewhere of an earlier step of the segment waits longer: each of them has S in its own ``before``, hence
  waits for S in any case, and S begins no later than it would have as a call of its own.
- S waits for the same runtime queries as F, so it can be submitted with F; and it belongs to the same stage, where a
  program has queues.
- S has the same ranks, so no rank waits for one that has more steps to do. This assumes that the ranks of a step work
  in lockstep, as collectives force them to. If ranks need different times for a step, or begin it at different times,
  a fast rank may wait for a slow one a step earlier than necessary.

Why calls never wait for each other in a circle: the inputs of a segment are made by steps in ``before[F]``, all of them
earlier than F in program order. So their segments have smaller numbers, and each segment waits only for those before it
in the order of submission. This holds for short steps too, which join although others wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hfdsl.deploy.pools import devices
from hfdsl.graph.columns import columns_read, origins
from hfdsl.graph.program import Filter, Input
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.deadlines import step_deadline
from hfdsl.plan.payloads import Payload
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.rows import runtime_queries


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that run one after another on ``ranks`` of a group, as one call per rank.

    ``number`` is the node of the first step. ``after[i]`` is a call of another process on the device of ``ranks[i]``,
    as (segment, rank there), that has to end first: roles that share devices run in program order.
    """

    number: int
    group: str
    steps: tuple[Step, ...]
    ranks: tuple[int, ...]
    after: tuple[tuple[int, int] | None, ...] = ()

    @property
    def custom(self) -> bool:
        """Whether its protocol is a custom one, whose functions get whole values in the driver."""
        return self.steps[0].custom is not None


@dataclass(frozen=True, slots=True)
class Task:
    """One rank's part of a segment: its steps, and what happens to their results.

    ``keeps`` are results that the rank reads again itself; ``drops[step]`` are values that it never reads after that
    step; ``sends`` are the payloads that leave at the end.
    """

    steps: tuple[int, ...]
    sends: tuple[Payload, ...]
    keeps: frozenset[int]
    drops: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies between steps, for any rows.

    ``before[step]`` has a bit for every step that ends before this one begins. ``queries[node]`` are the runtime
    queries to resolve first: filters that decide its rows, and weights by which they are balanced, for its own sake or
    for that of an earlier step on its devices. ``query_sources[query]`` are the values that a query reads.
    ``early_queries`` read the caller's inputs alone: they are resolved before all else, so nothing waits for them.
    """

    before: Mapping[int, int]
    queries: tuple[frozenset[int], ...]
    query_sources: Mapping[int, tuple[int, ...]]
    early_queries: frozenset[int]

    def last_query(self, node: int) -> int:
        """The last runtime query that the driver has to resolve before a node; -1 if none."""
        return max(self.queries[node] - self.early_queries, default=-1)


def submission_order(plan: Plan, waits: Dependencies) -> list[Step]:
    """The steps in the order in which the driver submits them.

    It submits all that it can, in program order, then resolves the first query, and so on: queries are resolved in the
    order of their nodes, since what a query reads depends only on queries of earlier nodes.
    """
    return sorted(plan.steps, key=lambda step: waits.last_query(step.node))


def dependencies(plan: Plan) -> Dependencies:
    """The dependencies between steps: reads, runtime queries, and earlier steps in the same processes."""
    queries, sources = _queries(plan), _query_sources(plan)
    before: dict[int, int] = {}
    earlier: dict[str, list[Step]] = {}
    for step in plan.steps:
        waits_for = {node for node, _ in columns_read(plan.graph, step.node)}
        waits_for |= {node for query in queries[step.node] for node in sources[query]}
        # The driver's own steps read what the driver has, and wait for no process.
        group_steps = earlier.setdefault(step.group, []) if step.group != DRIVER else []
        # The last step that runs in every process of this one; it waits for those before it in turn.
        last = next((candidate for candidate in reversed(group_steps) if _covers(candidate, step)), None)
        waits_for |= {last.node} if last is not None else set()
        mask = 0
        for node in waits_for & before.keys():
            mask |= before[node] | 1 << node
        before[step.node] = mask
        group_steps.append(step)
    return Dependencies(before, queries, sources, _early_queries(plan, queries))


def _covers(earlier: Step, step: Step) -> bool:
    """Whether the earlier step runs in every process of the later one."""
    return earlier.ranks == step.ranks or set(earlier.ranks) >= set(step.ranks)


def _early_queries(plan: Plan, queries: Sequence[frozenset[int]]) -> frozenset[int]:
    """The queries that read the caller's inputs alone, which the driver holds."""
    early: frozenset[int] = frozenset()
    for query in runtime_queries(plan) if plan.optimize.residency else ():
        sources = origins(plan.graph, query.ref.node, query.ref.column or VALUE)
        if queries[query.ref.node] <= early and all(isinstance(plan.node(node).op, Input) for node, _ in sources):
            early |= {query.node}
    return early


def _queries(plan: Plan) -> tuple[frozenset[int], ...]:
    """For every node the queries to resolve before it."""
    steps, sharing = {step.node: step for step in plan.steps}, _groups_sharing_devices(plan)
    of_group: dict[str, frozenset[int]] = {}
    queries: list[frozenset[int]] = []
    for node in plan.graph.nodes:
        filters = frozenset({node.id} if isinstance(node.op, Filter) else ())
        needed = filters.union(*(queries[ref.node] for ref in node.refs))
        step = steps.get(node.id)
        if step is not None and step.balance is not None:
            needed |= {step.balance.query, *queries[step.balance.weights.node]}
        if step is not None and step.group in sharing:
            # Program order holds on a device: a step also waits for the queries of earlier steps there.
            needed |= of_group.get(step.group, frozenset())
            for group in (step.group, *sharing[step.group]):
                of_group[group] = of_group.get(group, frozenset()) | needed
        queries.append(needed)
    return tuple(queries)


def _query_sources(plan: Plan) -> dict[int, tuple[int, ...]]:
    return {
        query.node: tuple(node for node, _ in origins(plan.graph, query.ref.node, query.ref.column or VALUE))
        for query in runtime_queries(plan)
    }


def segments(
    plan: Plan, waits: Dependencies, received: Mapping[int, frozenset[int]], short_steps: AbstractSet[int] = frozenset()
) -> tuple[Segment, ...]:
    """Form segments of the steps in ``received``, which maps each to the values that it reads from other processes.

    ``short_steps`` take less time than a call, so they join even where others wait for them.
    """
    readers = _remote_readers(plan, waits, received)
    by_number: dict[int, Segment] = {}
    open_segment: dict[str, int] = {}  # the last segment of each group, while later steps may still join it
    sharing = _groups_sharing_devices(plan)
    for step in plan.steps:
        if step.node not in received:
            continue
        last = by_number.get(open_segment.get(step.group, -1))
        if (
            last is not None
            and plan.optimize.fusion
            and _may_share_call(plan, waits, received, last, step)
            and (step.node in short_steps or _delays_nothing(waits, readers, last, step))
        ):
            ranks = tuple(sorted({*last.ranks, *step.ranks}))
            by_number[last.number] = replace(last, steps=(*last.steps, step), ranks=ranks)
        else:
            by_number[step.node] = Segment(step.node, step.group, (step,), step.ranks)
            open_segment[step.group] = step.node
        for group in sharing.get(step.group, ()):
            open_segment.pop(group, None)  # a later step there must not run before this one
    return tuple(_in_device_order(plan, by_number.values()))


def _remote_readers(plan: Plan, waits: Dependencies, received: Mapping[int, frozenset[int]]) -> dict[int, set[int]]:
    """The steps that wait for each value to leave its process.

    A step whose rows depend on a later query than the value may turn out to read it elsewhere. It counts as a reader
    even once the query is resolved: the segment of the value has been submitted by then, and must remain the same.
    """
    readers: dict[int, set[int]] = {}
    for step in plan.steps:
        queries = waits.queries[step.node]
        source_nodes = {node for query in queries for node in waits.query_sources[query]}
        source_nodes |= received.get(step.node, frozenset())
        for node, _ in columns_read(plan.graph, step.node):
            if not queries <= waits.queries[node] | waits.early_queries:
                source_nodes.add(node)
        for node in source_nodes:
            readers.setdefault(node, set()).add(step.node)
    return readers


def _may_share_call(
    plan: Plan, waits: Dependencies, received: Mapping[int, frozenset[int]], segment: Segment, step: Step
) -> bool:
    """Whether a step can run in the call of a segment, which then begins no later and is submitted no later."""
    first, stage_of = segment.steps[0], plan.split.of
    if step.group == DRIVER or step.custom or segment.custom:
        return False
    # A step with a deadline, or that loads weights in flight, is a segment of its own.
    if any(step_deadline(plan, either) is not None or plan.loads_in_flight(either) for either in (step, first)):
        return False
    if waits.queries[step.node] != waits.queries[segment.number] or stage_of[step.node] != stage_of[segment.number]:
        return False
    # The step's inputs exist when the segment begins. Nodes without a bit are the caller's inputs.
    present = frozenset().union(*(received[earlier.node] for earlier in segment.steps))
    ended = waits.before[segment.number]
    return all(node not in waits.before or ended >> node & 1 for node in received[step.node] - present)


def _delays_nothing(waits: Dependencies, readers: Mapping[int, set[int]], segment: Segment, step: Step) -> bool:
    """Whether no rank, and no reader elsewhere, waits longer for a segment that a step joins.

    The segment has the ranks of the step, and readers elsewhere of what it makes wait for the step in any case.
    """
    return all(earlier.ranks == step.ranks for earlier in segment.steps) and all(
        waits.before[reader] >> step.node & 1 for earlier in segment.steps for reader in readers.get(earlier.node, ())
    )


def _groups_sharing_devices(plan: Plan) -> dict[str, set[str]]:
    """For every group the others that have a device in common with it."""
    used = {group.name: set(devices(group.pool)) for group in plan.groups}
    return {name: {neighbor for neighbor in used if neighbor != name and used[neighbor] & used[name]} for name in used}


def _in_device_order(plan: Plan, in_order: Iterable[Segment]) -> Iterator[Segment]:
    """Segments with the calls of other processes on their devices that come before."""
    device_of = {group.name: devices(group.pool) for group in plan.groups}
    last_call: dict[tuple[str, int], tuple[str, int, int]] = {}  # by device: group, segment, rank
    for segment in in_order:
        if segment.group not in device_of:
            yield segment
            continue
        used = [device_of[segment.group][rank] for rank in segment.ranks]
        calls = [last_call.get(device) for device in used]
        for device, rank in zip(used, segment.ranks, strict=True):
            last_call[device] = segment.group, segment.number, rank
        # Calls of the same process need no entry: a process runs its calls in the order in which they are submitted.
        yield replace(segment, after=tuple(call[1:] if call and call[0] != segment.group else None for call in calls))
