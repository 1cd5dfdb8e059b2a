"""Segments: consecutive steps of the same processes that keep nobody waiting are submitted as one call a rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hfdsl.deploy.pools import devices
from hfdsl.graph.columns import columns_read, origins
from hfdsl.graph.program import Filter, Input
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.rows import runtime_queries


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that run one after another on ``ranks`` of a group, as one call of each of them.

    ``number`` is the node of the first step. ``after[i]`` is the call, as (segment, rank there), of other processes on
    the device of ``ranks[i]`` that has to end first: roles that share devices run in program order.
    """

    number: int
    group: str
    steps: tuple[Step, ...]
    ranks: tuple[int, ...]
    after: tuple[tuple[int, int] | None, ...] = ()

    @property
    def custom(self) -> bool:
        """Whether its protocol is a pair of functions, which get whole values in the driver."""
        return self.steps[0].custom is not None


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Who waits for whom, whatever the rows are.

    ``before[node]`` has a bit for every step that ends before a step begins; ``filters[node]`` are the filters that
    have to keep their rows first, and the weights by which rows have to be balanced, for its own sake or for that of an
    earlier step on its devices; ``masks[question]`` are the values that say which rows. ``early`` are those of them
    that the caller has answered with what he gives: nothing waits for them, since they are read before all else.
    """

    before: Mapping[int, int]
    queries: tuple[frozenset[int], ...]
    query_sources: Mapping[int, tuple[int, ...]]
    early_queries: frozenset[int]


def dependencies(plan: Plan) -> Dependencies:
    """Who waits for whom: for what is read, for filters, and for earlier steps in the same processes."""
    filters, keeping = _filters(plan), _masks(plan)
    before: dict[int, int] = {}
    earlier: dict[str, list[Step]] = {}
    for step in plan.steps:
        needs = {node for node, _ in columns_read(plan.graph, step.node)}
        needs |= {node for one in filters[step.node] for node in keeping[one]}
        own = earlier.setdefault(step.group, [])
        last = next((one for one in reversed(own) if _covers(one, step)), None)
        needs |= {last.node} if last is not None else set()
        mask = 0
        for node in needs & before.keys():
            mask |= before[node] | 1 << node
        before[step.node] = mask
        own.append(step)
    return Dependencies(before, filters, keeping, _early(plan, filters))


def _covers(one: Step, other: Step) -> bool:
    """Whether every process of the other step has a part in this one."""
    return one.ranks == other.ranks or set(one.ranks) >= set(other.ranks)


def _early(plan: Plan, filters: Sequence[frozenset[int]]) -> frozenset[int]:
    """The questions whose answer the caller gives, where the driver reads what it holds without more ado."""
    found: frozenset[int] = frozenset()
    for one in runtime_queries(plan) if plan.optimize.residency else ():
        made_by = (plan.node(node).op for node, _ in origins(plan.graph, one.ref.node, one.ref.column or VALUE))
        if filters[one.ref.node] <= found and all(isinstance(op, Input) for op in made_by):
            found |= {one.number}
    return found


def _filters(plan: Plan) -> tuple[frozenset[int], ...]:
    steps, sharing = {step.node: step for step in plan.steps}, _sharing(plan)
    waited: dict[str, frozenset[int]] = {}
    filters: list[frozenset[int]] = []
    for node in plan.graph.nodes:
        own = frozenset({node.id} if isinstance(node.op, Filter) else ())
        found = own.union(*(filters[ref.node] for ref in node.refs))
        step = steps.get(node.id)
        if step is not None and step.balance is not None:
            found |= {step.balance.number, *filters[step.balance.weights.node]}
        if step is not None and step.group in sharing:
            found |= waited.get(step.group, frozenset())
            waited |= {group: waited.get(group, frozenset()) | found for group in (step.group, *sharing[step.group])}
        filters.append(found)
    return tuple(filters)


def _masks(plan: Plan) -> dict[int, tuple[int, ...]]:
    return {
        one.number: tuple(made for made, _ in origins(plan.graph, one.ref.node, one.ref.column or VALUE))
        for one in runtime_queries(plan)
    }


def segments(
    plan: Plan, waits: Dependencies, away: Mapping[int, frozenset[int]], brief: AbstractSet[int] = frozenset()
) -> tuple[Segment, ...]:
    """The segments of the steps in ``away``, which says what values each of them reads from other processes.

    ``brief`` are steps that take less time than a call: nobody minds waiting for one.
    """
    readers = _readers(plan, waits, away)
    grown: dict[int, Segment] = {}
    growing: dict[str, int] = {}
    sharing = _sharing(plan)
    for step in plan.steps:
        if step.node not in away:
            continue
        last = grown.get(growing.get(step.group, -1))
        short = step.node in brief
        if last is not None and plan.optimize.fusion and _joins(step, last, waits, away, readers, short):
            ranks = tuple(sorted({*last.ranks, *step.ranks}))
            grown[last.number] = replace(last, steps=(*last.steps, step), ranks=ranks)
        else:
            grown[step.node] = Segment(step.node, step.group, (step,), step.ranks)
            growing[step.group] = step.node
        for other in sharing.get(step.group, ()):
            growing.pop(other, None)  # a later step there must not run before this one
    return tuple(_in_turn(plan, grown.values()))


def _readers(plan: Plan, waits: Dependencies, away: Mapping[int, frozenset[int]]) -> dict[int, set[int]]:
    """The steps that wait for each value to leave its process."""
    readers: dict[int, set[int]] = {}
    for step in plan.steps:
        read = away.get(step.node, {node for node, _ in columns_read(plan.graph, step.node)})
        for node in {*read, *(made for one in waits.queries[step.node] for made in waits.query_sources[one])}:
            readers.setdefault(node, set()).add(step.node)
    return readers


def _joins(
    step: Step,
    segment: Segment,
    waits: Dependencies,
    away: Mapping[int, frozenset[int]],
    readers: Mapping[int, set[int]],
    short: bool,
) -> bool:
    """Whether a segment can take in a step, and nobody waits longer for it.

    What the step reads from elsewhere is there when the segment begins; and whoever reads elsewhere what the segment
    makes waits for the step in any case. This looks at steps as wholes: of ranks that need unlike times for one step, a
    fast one may wait for a slow one a step earlier than it would have to. So a step of other ranks is a call of its
    own. For a ``short`` one everybody may wait.
    """
    if step.group == DRIVER or step.custom or segment.custom:
        return False
    if waits.queries[step.node] != waits.queries[segment.number]:
        return False
    if not short and any(one.ranks != step.ranks for one in segment.steps):
        return False
    taken = frozenset().union(*(away[one.node] for one in segment.steps))
    there = waits.before[segment.number]
    if any(node in waits.before and not there >> node & 1 for node in away[step.node] - taken):
        return False
    return short or all(
        waits.before[reader] >> step.node & 1 for one in segment.steps for reader in readers.get(one.node, ())
    )


def _sharing(plan: Plan) -> dict[str, set[str]]:
    """For every group the others that have a device in common with it."""
    on = {group.name: set(devices(group.pool)) for group in plan.groups}
    return {name: {other for other in on if other != name and on[other] & on[name]} for name in on}


def _in_turn(plan: Plan, made: Iterable[Segment]) -> Iterator[Segment]:
    """Segments with the calls of other processes on their devices that come before."""
    slots = {group.name: devices(group.pool) for group in plan.groups}
    busy: dict[tuple[str, int], tuple[str, int, int]] = {}
    for segment in made:
        if segment.group not in slots:
            yield segment
            continue
        own = [slots[segment.group][rank] for rank in segment.ranks]
        users = [busy.get(slot) for slot in own]
        busy |= {slot: (segment.group, segment.number, rank) for slot, rank in zip(own, segment.ranks, strict=True)}
        yield replace(segment, after=tuple(user[1:] if user and user[0] != segment.group else None for user in users))
