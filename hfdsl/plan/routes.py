"""Routes: for known rows, what leaves which process, who takes it, and which steps are one call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from hfdsl.graph.columns import columns_read, is_weight, origins, result_origins, stored_spec, weight_of
from hfdsl.graph.signatures import VALUE, ListType, RecordType, StaticType
from hfdsl.plan.payloads import (
    ANY_HOST,
    DRIVER_PROCESS,
    ColumnSlice,
    Destination,
    Payload,
    PayloadKey,
    Process,
    RemoteReads,
    Topology,
)
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.reading import Read, reads, result, unfetched, weights, whole, whole_arguments
from hfdsl.plan.rows import RowTable, RuntimeQuery, runtime_queries
from hfdsl.plan.segments import Dependencies, Segment, dependencies, segments
from hfdsl.plan.spreading import broadcasts
from hfdsl.plan.transports import goes_direct
from hfdsl.protocols.ranges import RowRanges
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec

CALLER = -1
"""The segment that the caller stands for: what he gives is made in it."""

DRIVER_RANK = -1
"""The driver's rank in a payload's name and among those who take payloads."""


@dataclass(frozen=True, slots=True)
class Task:
    """One rank's part of a segment: its steps, and what becomes of what they make.

    ``keeps`` are results that it reads itself later; ``drops[step]`` the values that it never reads after that step;
    ``sends`` the payloads that leave at the end.
    """

    steps: tuple[int, ...]
    sends: tuple[Payload, ...]
    keeps: frozenset[int]
    drops: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Routes:
    """Who gets what from whom, for one set of sizes.

    ``tasks[segment][rank]`` is what a rank does, ``receives[segment][rank]`` what it receives before. A segment whose
    protocol is a pair of functions has its arguments sent to the driver instead. ``driver_sends[segment]`` are the
    payloads that the driver makes once the segment has ended: of the caller's inputs, and of what such functions
    collect. ``query_payloads[query]`` and ``result`` are what the driver receives to resolve a query, and to return.
    ``early_queries`` are to be resolved before the first call, from the caller's inputs alone. ``open_payloads`` may
    get more readers once filters have kept their rows.
    """

    table: RowTable
    segments: tuple[Segment, ...]
    tasks: Mapping[int, Mapping[int, Task]]
    receives: Mapping[int, Mapping[int, tuple[PayloadKey, ...]]]
    driver_sends: Mapping[int, tuple[Payload, ...]]
    query_payloads: Mapping[int, tuple[PayloadKey, ...]]
    early_queries: tuple[int, ...]
    result: tuple[PayloadKey, ...]
    open_payloads: frozenset[PayloadKey]


@dataclass(frozen=True, slots=True)
class Hints:
    """What a run has learnt, and a plan cannot know.

    ``short_steps`` take less time than a call. ``inline_inputs`` are values of the driver's that are cut for every
    process separately, since what each process reads travels with its call.
    """

    short_steps: frozenset[int] = frozenset()
    inline_inputs: frozenset[int] = frozenset()


def routes(plan: Plan, table: RowTable, topology: Topology, hints: Hints = Hints()) -> Routes:
    """Who gets what from whom, for one set of sizes.

    A step that waits for a filter which has not kept its rows yet, or for rows that are not balanced yet, is left out;
    a value that it is going to read leaves its process whole, since nobody knows who reads which rows.
    """
    context = _RoutingContext.of(plan, table, topology, hints.inline_inputs)
    away = {
        node: frozenset(read.node for process, own in by.items() for read in own if not context.stays(process, read))
        for node, by in context.reads.items()
    }
    made = segments(plan, context.dependencies, away, hints.short_steps)
    segment_of = {step.node: segment.number for segment in made for step in segment.steps}
    sent = _sent(context, segment_of | {node.id: CALLER for node in plan.graph.inputs})
    post = _DeliveryPlan(context, sent)
    takes: dict[int, dict[int, tuple[PayloadKey, ...]]] = {segment.number: {} for segment in made}
    for step in context.ready:
        taken = takes[segment_of[step.node]]
        for process, own in context.reads[step.node].items():
            rank = DRIVER_RANK if step.custom else process[1]
            taken[rank] = (*taken.get(rank, ()), *post.bring(process, step.node, own))
    by_function = {segment.number for segment in made if segment.custom} | {CALLER}
    return Routes(
        table,
        made,
        {one.number: post.tasks(one, sent) for one in made},
        takes,
        {number: tuple(sent.get((number, DRIVER_PROCESS), {}).values()) for number in by_function},
        {node: post.wanted(DRIVER_PROCESS, own) for node, own in context.query_reads.items()},
        tuple(
            number for number in context.query_reads if number in context.dependencies.early_queries - table.resolved
        ),
        post.wanted(DRIVER_PROCESS, context.result),
        frozenset(
            p.key for gives in sent.values() for p in gives.values() if any(c.node in context.later for c in p.slices)
        ),
    )


@dataclass(frozen=True, slots=True)
class _RoutingContext:
    """Who reads what, as far as the filters that have kept their rows tell.

    ``open`` are the values with a reader who waits for a filter that they do not wait for, and what such readers read;
    with True those that go to such readers directly. ``later`` are the values with a reader who waits still.
    """

    plan: Plan
    table: RowTable
    topology: Topology
    inline_inputs: frozenset[int]
    dependencies: Dependencies
    ready: tuple[Step, ...]
    reads: Mapping[int, Mapping[Process, tuple[Read, ...]]]
    query_reads: Mapping[int, tuple[Read, ...]]
    result: tuple[Read, ...]
    open: Mapping[tuple[int, bool], Mapping[str, None]]
    later: frozenset[int]
    pending: frozenset[tuple[str, int]]  # (group, value) that steps which are left out read

    @classmethod
    def of(cls, plan: Plan, table: RowTable, topology: Topology, small: frozenset[int]) -> _RoutingContext:
        graph, waits, resolved = plan.graph, dependencies(plan), table.resolved
        ready = tuple(step for step in plan.steps if waits.queries[step.node] <= resolved)
        later = (step for step in plan.steps if not waits.queries[step.node] <= resolved)
        output = [ref for ref in graph.output.refs() if waits.queries[ref.node] <= resolved]
        asked = [one for one in runtime_queries(plan) if waits.queries[one.ref.node] <= resolved]
        return cls(
            plan,
            table,
            topology,
            small,
            waits,
            ready,
            {step.node: _by_process(plan, step, table) for step in ready},
            {one.number: tuple(_answering(plan, one, table)) for one in asked},
            tuple(read for ref in output for read in result(plan, ref, table)),
            _open(plan, waits, topology),
            frozenset(node for reader, _, node, _ in _all_reads(plan) if not waits.queries[reader] <= resolved),
            frozenset((step.group, node) for step in later for node, _ in columns_read(graph, step.node)),
        )

    def maker(self, node: int, chunk: int) -> Process:
        """The process that makes a chunk."""
        return self.plan.layouts[node].maker(chunk)

    def stays(self, process: Process, read: Read) -> bool:
        """Whether a process reads what it made itself."""
        return self.plan.optimize.residency and self.maker(read.node, read.chunk) == process

    def way(self, process: Process, read: Read) -> tuple[bool, Destination]:
        """Whether what a process reads goes to it directly, and where to.

        What goes through the store goes to a node once, for all who read it there; what goes directly goes to each
        process by itself, so that none is sent rows that only another one reads. What rows weigh goes to the driver,
        apart from the rows.
        """
        direct, maker = (
            goes_direct(self.plan, self.topology.direct_groups, read.node, process[0]),
            self.maker(read.node, read.chunk),
        )
        everybody = direct and (maker[0], process[0]) not in self.topology.partly_connected
        if (read.node, everybody) in self.open and not is_weight(read.columns[0]):
            return everybody, ANY_HOST
        direct = direct and self.topology.reaches(maker, process)
        apart = direct or read.node in self.inline_inputs
        return direct, process if apart else self.topology.host_of(process)

    def everywhere(self) -> Iterator[tuple[Process, Read]]:
        """Every read, in program order."""
        for step in self.ready:
            for process, own in self.reads[step.node].items():
                yield from ((process, read) for read in own)
        for own in (*self.query_reads.values(), self.result):
            yield from ((DRIVER_PROCESS, read) for read in own)


def _by_process(plan: Plan, step: Step, table: RowTable) -> Mapping[Process, tuple[Read, ...]]:
    if step.custom is not None:
        return {DRIVER_PROCESS: tuple(whole_arguments(plan, step, table))}
    return {(step.group, rank): own for rank, own in zip(step.ranks, reads(plan, step, table), strict=True)}


def _answering(plan: Plan, query: RuntimeQuery, table: RowTable) -> Iterator[Read]:
    if query.weighs:
        return weights(plan, query.ref, table)
    return whole(plan, query.ref, (query.ref.column or VALUE,), table)


def _open(plan: Plan, waits: Dependencies, topology: Topology) -> Mapping[tuple[int, bool], dict[str, None]]:
    found: dict[tuple[int, bool], dict[str, None]] = {}
    for reader, group, node, column in _all_reads(plan):
        if not waits.queries[reader] <= waits.queries[node] | waits.early_queries:
            everybody = (plan.layouts[node].group, group) not in topology.partly_connected
            direct = everybody and goes_direct(plan, topology.direct_groups, node, group)
            found.setdefault((node, direct), {})[column] = None
    return found


def _all_reads(plan: Plan) -> Iterator[tuple[int, str, int, str]]:
    """Who reads, in which group, which stored column of what, whatever the rows: steps, filters, and the caller."""
    graph = plan.graph
    for step in plan.steps:
        group = DRIVER if step.custom else step.group
        yield from ((step.node, group, *pair) for pair in columns_read(graph, step.node))
    for one in runtime_queries(plan):
        for node, column in origins(graph, one.ref.node, one.ref.column or VALUE):
            yield one.ref.node, DRIVER, node, weight_of(column) if one.weighs else column
    for ref in graph.output.refs():
        yield from ((ref.node, DRIVER, *pair) for pair in result_origins(graph, ref))


# -- what leaves


_Way = tuple[bool, frozenset[Destination], tuple[Process, ...]]
"""Whether a payload goes directly, the destinations that it goes to, and who takes part where it is broadcast."""

_Gives = Mapping[_Way, Payload]
"""What a process gives in a segment."""

_Sent = Mapping[tuple[int, Process], _Gives]


def _sent(context: _RoutingContext, segment_of: Mapping[int, int]) -> _Sent:
    together = broadcasts(context.plan, context.dependencies, context.topology.direct_groups)
    home = frozenset({context.topology.host_of(DRIVER_PROCESS)})
    bundles: dict[tuple[int, Process], dict[_Way, list[ColumnSlice]]] = {}
    for (node, chunk, direct), remote in _remote_reads(context, segment_of.keys()).items():
        bundle = bundles.setdefault((segment_of[node], context.maker(node, chunk)), {})
        for column, rows, destinations in remote.cells():
            bundle.setdefault((direct, destinations, together.get(node, ())), []).append(
                ColumnSlice(node, chunk, column, rows)
            )
    return {
        (segment, process): {
            way: Payload(
                (segment, DRIVER_RANK if process == DRIVER_PROCESS else process[1], number),
                tuple(cuts),
                direct=way[0],
                broadcast=way[2],
                inline=way[1] == home and all(_is_number(context.plan, cut) for cut in cuts),
            )
            for number, (way, cuts) in enumerate(bundle.items())
        }
        for (segment, process), bundle in bundles.items()
    }


def _is_number(plan: Plan, cut: ColumnSlice) -> bool:
    """Whether a cut is a metric, or a plain number as the whole of a result or of each entry of one."""
    made = plan.node(cut.node).result
    one = made.inner if isinstance(made, ListType) else made
    if isinstance(one, StaticType):
        return one.annotation in (bool, int, float)
    return isinstance(stored_spec(made, cut.column), MetricSpec) and not plan.layouts[cut.node].lists


def _remote_reads(context: _RoutingContext, made: AbstractSet[int]) -> Mapping[tuple[int, int, bool], RemoteReads]:
    """What is read elsewhere of each chunk, by way: as it is read where pruning is on, else the chunk as a whole."""
    on, reader = context.plan.optimize, unfetched(context.plan, context.table)
    found: dict[tuple[int, int, bool], RemoteReads] = {}

    def ask(
        way: tuple[bool, Destination], node: int, chunk: int, columns: tuple[str, ...], rows: RowRanges | None
    ) -> None:
        direct, where = way
        remote, bounds = found.setdefault((node, chunk, direct), RemoteReads()), context.table.bounds.get(node)
        every = ((0, bounds[chunk + 1] - bounds[chunk] if bounds else 0),)
        for column in columns if on.column_pruning or is_weight(columns[0]) else _columns(context.plan, node):
            part = rows if on.row_pruning and where is not ANY_HOST else None
            remote.add(where, column, (part or every) if reader.has_rows(node, column) else None)

    for node, direct in (one for one in context.open if one[0] in made):
        for chunk in range(context.plan.layouts[node].chunks):
            for column in context.open[node, direct]:
                where = context.topology.host_of(DRIVER_PROCESS) if is_weight(column) else ANY_HOST
                ask((direct, where), node, chunk, (column,), None)
    asked: set[tuple[bool, Destination, int]] = set()
    for process, read in context.everywhere():
        way = context.way(process, read)
        if not context.stays(process, read) and (*way, id(read)) not in asked:
            asked.add((*way, id(read)))  # ranks that are given the same chunk share its reads
            ask(way, read.node, read.chunk, read.columns, read.rows)
    return found


def _columns(plan: Plan, node: int) -> tuple[str, ...]:
    made = plan.node(node).result
    made = made.inner if isinstance(made, ListType) else made
    return tuple(schema(made.record).fields) if isinstance(made, RecordType) else (VALUE,)


# -- who takes it


class _DeliveryPlan:
    """Brings payloads to readers, each once, and remembers what every process reads last."""

    def __init__(self, context: _RoutingContext, sent: _Sent) -> None:
        self._context = context
        self._of: dict[tuple[int, int, tuple[bool, Destination]], dict[PayloadKey, dict[str, RowRanges | None]]] = {}
        self._nodes: dict[PayloadKey, tuple[int, ...]] = {}
        for payloads in sent.values():
            for (direct, destinations, _), payload in payloads.items():
                self._nodes[payload.key] = tuple(dict.fromkeys(cut.node for cut in payload.slices))
                for cut in payload.slices:
                    for destination in destinations:
                        there = self._of.setdefault((cut.node, cut.chunk, (direct, destination)), {})
                        there.setdefault(payload.key, {})[cut.column] = cut.rows
        self._brought: dict[Process, set[PayloadKey]] = {}
        self._last: dict[Process, dict[int, int]] = {}
        self._own: dict[Process, set[int]] = {}

    def wanted(self, process: Process, own: Iterable[Read]) -> tuple[PayloadKey, ...]:
        """The payloads that a process reads from."""
        return tuple(dict.fromkeys(key for read in own for key in self._holding(process, read)))

    def bring(self, process: Process, step: int, own: Iterable[Read]) -> tuple[PayloadKey, ...]:
        """The payloads that a process reads from in a step and has not been brought before."""
        last, kept = self._last.setdefault(process, {}), self._own.setdefault(process, set())
        for read in own:
            last[read.node] = step
            if self._context.stays(process, read):
                kept.add(read.node)
        brought = self._brought.setdefault(process, set())
        new = tuple(key for key in self.wanted(process, own) if key not in brought)
        for node in (node for key in new for node in self._nodes[key]):
            last.setdefault(node, step)  # what only its neighbours read comes along, and goes at once
        if process != DRIVER_PROCESS:  # which keeps what it is brought, and asks for all that it needs
            brought.update(new)
        return new

    def tasks(self, segment: Segment, sent: _Sent) -> dict[int, Task]:
        """Every rank's part of a segment, once all reads are known."""
        steps: dict[int, tuple[int, ...]] = dict.fromkeys(segment.ranks, ())
        for step in segment.steps:
            for rank in step.ranks:
                steps[rank] = (*steps[rank], step.node)
        return {
            rank: self._task(segment, rank, own, sent.get((segment.number, (segment.group, rank)), {}))
            for rank, own in steps.items()
        }

    def _task(self, segment: Segment, rank: int, steps: tuple[int, ...], gives: _Gives) -> Task:
        process, pending = (segment.group, rank), self._context.pending
        if process == DRIVER_PROCESS:  # who may return what it made
            return Task(steps, tuple(gives.values()), frozenset(steps), {})
        own, drops = self._own.get(process, set()), dict[int, tuple[int, ...]]()
        if self._context.plan.optimize.liveness:
            for node, step in self._last.get(process, {}).items():
                if step in steps and (segment.group, node) not in pending:
                    drops[step] = (*drops.get(step, ()), node)
        layouts = {node: self._context.plan.layouts[node] for node in steps if (segment.group, node) in pending}
        held = (node for node, layout in layouts.items() if layout.group == segment.group and rank in layout.holders)
        keeps = frozenset({*held, *own.intersection(steps)})
        return Task(steps, tuple(gives.values()), keeps, drops)

    def _holding(self, process: Process, read: Read) -> Iterator[PayloadKey]:
        if self._context.stays(process, read):
            return
        for key, ranges in self._of[read.node, read.chunk, self._context.way(process, read)].items():
            if any(name in ranges and _meet(ranges[name], read.rows) for name in read.columns):
                yield key


def _meet(ranges: RowRanges | None, rows: RowRanges | None) -> bool:
    """Whether a payload has some of these rows, both in order; no rows are in every one."""
    if ranges is None or rows is None or ranges == rows or rows[0][0] == rows[0][1]:
        return True
    ends = [last for _, last in ranges]
    starts = (bisect_right(ends, first) for first, _ in rows)
    return any(i < len(ranges) and ranges[i][0] < last for i, (_, last) in zip(starts, rows, strict=True))
