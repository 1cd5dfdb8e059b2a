"""Deliveries: which payloads leave each process at the end of a segment, and which calls receive them.

``RoutingContext`` says who reads what. ``outgoing_payloads`` packs what is read elsewhere. ``DeliveryPlan`` gives every
call the keys of the payloads that it reads and its process does not have yet, and finds the step after which a process
can drop a value. ``hfdsl.plan.routes`` follows an example through all three.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TypeAlias

from hfdsl.graph.columns import columns_read, is_weight, origins, result_origins, stored_spec, weight_of
from hfdsl.graph.signatures import VALUE, ListType, RecordType, StaticType
from hfdsl.plan.payloads import (
    ANY_HOST,
    DRIVER_PROCESS,
    DRIVER_RANK,
    ColumnSlice,
    Destination,
    Payload,
    PayloadKey,
    Process,
    Topology,
)
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.reading import Read, reads, result, unfetched, weights, whole, whole_arguments
from hfdsl.plan.rows import RowTable, RuntimeQuery, runtime_queries
from hfdsl.plan.segments import Dependencies, Segment, Task, dependencies
from hfdsl.plan.transports import broadcasts, goes_direct
from hfdsl.protocols.ranges import RowRange, RowRanges, merged
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec

Channel: TypeAlias = tuple[bool, Destination]
"""Whether rows bypass the object store, and where they go."""

Audience: TypeAlias = tuple[bool, frozenset[Destination], tuple[Process, ...]]
"""The readers of a payload: whether it bypasses the object store, its destinations, and who takes part if broadcast."""

Outgoing: TypeAlias = Mapping[tuple[int, Process], Mapping[Audience, Payload]]
"""The payloads that leave each process at the end of each segment."""


# -- who reads what


@dataclass(frozen=True, slots=True)
class RoutingContext:
    """Who reads what, as far as the resolved runtime queries decide it.

    ``ready`` are the steps whose rows are known, ``reads[step][process]`` what each process reads in them;
    ``query_reads[query]`` and ``result`` are what the driver reads. ``open_columns[value, direct]`` leave before their
    rows are known: some reader depends on a query on which the value itself does not depend. ``late_values`` have a
    reader whose rows are not known yet; ``late_reads`` are the (group, value) pairs that such steps will read.
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
    open_columns: Mapping[tuple[int, bool], Mapping[str, None]]
    late_values: frozenset[int]
    late_reads: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, plan: Plan, table: RowTable, topology: Topology, inline_inputs: frozenset[int]) -> RoutingContext:
        """The context of a plan, for the queries whose results are in the row table."""
        graph, waits = plan.graph, dependencies(plan)

        def known(node: int) -> bool:
            return waits.queries[node] <= table.resolved

        ready = tuple(step for step in plan.steps if known(step.node))
        return cls(
            plan=plan,
            table=table,
            topology=topology,
            inline_inputs=inline_inputs,
            dependencies=waits,
            ready=ready,
            reads={step.node: _reads_by_process(plan, step, table) for step in ready},
            query_reads={
                query.number: tuple(_query_reads(plan, query, table))
                for query in runtime_queries(plan)
                if known(query.ref.node)
            },
            result=tuple(read for ref in graph.output.refs() if known(ref.node) for read in result(plan, ref, table)),
            open_columns=_open_columns(plan, waits, topology),
            late_values=frozenset(node for reader, _, node, _ in _all_reads(plan) if not known(reader)),
            late_reads=frozenset(
                (step.group, node)
                for step in plan.steps
                if not known(step.node)
                for node, _ in columns_read(graph, step.node)
            ),
        )

    def maker(self, node: int, chunk: int) -> Process:
        """The process that makes a chunk."""
        return self.plan.layouts[node].maker(chunk)

    def in_place(self, process: Process, read: Read) -> bool:
        """Whether a process reads a chunk that it made itself, without any transfer."""
        return self.plan.optimize.residency and self.maker(read.node, read.chunk) == process

    def channel(self, process: Process, read: Read) -> Channel:
        """How a process receives what it reads.

        Through the object store rows go to a host once, for all who read them there. Directly they go to each process
        separately, so that none receives rows that only another one reads. Row weights go to the driver, apart from the
        rows themselves.
        """
        maker = self.maker(read.node, read.chunk)
        direct = goes_direct(self.plan, self.topology.direct_groups, read.node, process[0])
        whole_group = direct and (maker[0], process[0]) not in self.topology.partly_connected
        if (read.node, whole_group) in self.open_columns and not is_weight(read.columns[0]):
            return whole_group, ANY_HOST
        direct = direct and self.topology.reaches(maker, process)
        separate = direct or read.node in self.inline_inputs
        return direct, process if separate else self.topology.host_of(process)

    def all_reads(self) -> Iterator[tuple[Process, Read]]:
        """Every read, in program order."""
        for step in self.ready:
            for process, process_reads in self.reads[step.node].items():
                yield from ((process, read) for read in process_reads)
        for driver_reads in (*self.query_reads.values(), self.result):
            yield from ((DRIVER_PROCESS, read) for read in driver_reads)


def _reads_by_process(plan: Plan, step: Step, table: RowTable) -> Mapping[Process, tuple[Read, ...]]:
    if step.custom is not None:
        return {DRIVER_PROCESS: tuple(whole_arguments(plan, step, table))}
    by_rank = zip(step.ranks, reads(plan, step, table), strict=True)
    return {(step.group, rank): rank_reads for rank, rank_reads in by_rank}


def _query_reads(plan: Plan, query: RuntimeQuery, table: RowTable) -> Iterator[Read]:
    if query.weighs:
        return weights(plan, query.ref, table)
    return whole(plan, query.ref, (query.ref.column or VALUE,), table)


def _open_columns(plan: Plan, waits: Dependencies, topology: Topology) -> Mapping[tuple[int, bool], Mapping[str, None]]:
    # This depends on the plan alone, never on which queries are resolved: a value that left before a query was resolved
    # must leave in the same payloads in the routes after it, since those who sent it are not called again.
    columns: dict[tuple[int, bool], dict[str, None]] = {}
    for reader, group, node, column in _all_reads(plan):
        if not waits.queries[reader] <= waits.queries[node] | waits.early_queries:
            connected = (plan.layouts[node].group, group) not in topology.partly_connected
            direct = connected and goes_direct(plan, topology.direct_groups, node, group)
            columns.setdefault((node, direct), {})[column] = None
    return columns


def _all_reads(plan: Plan) -> Iterator[tuple[int, str, int, str]]:
    """(reader, its group, value, stored column), whatever the rows: of steps, of queries, and of the caller."""
    graph = plan.graph
    for step in plan.steps:
        group = DRIVER if step.custom else step.group
        yield from ((step.node, group, *pair) for pair in columns_read(graph, step.node))
    for query in runtime_queries(plan):
        for node, column in origins(graph, query.ref.node, query.ref.column or VALUE):
            yield query.ref.node, DRIVER, node, weight_of(column) if query.weighs else column
    for ref in graph.output.refs():
        yield from ((ref.node, DRIVER, *pair) for pair in result_origins(graph, ref))


# -- what leaves


@dataclass(slots=True)
class RemoteReads:
    """What processes elsewhere read of one chunk: rows by column, for each destination."""

    by_destination: dict[Destination, dict[str, list[RowRanges] | None]] = field(default_factory=dict)

    def add(self, destination: Destination, column: str, rows: RowRanges | None) -> None:
        """A process there reads these rows of a column; with None the whole of what has no rows."""
        requests = self.by_destination.setdefault(destination, {}).setdefault(column, None if rows is None else [])
        if requests is not None and rows is not None and rows not in requests[-1:]:
            requests.append(rows)

    def slices(self) -> Iterator[tuple[str, RowRanges | None, frozenset[Destination]]]:
        """Rows of columns, none of them twice, with all destinations that read them."""
        for column in dict.fromkeys(name for columns in self.by_destination.values() for name in columns):
            by_destination = {
                destination: columns[column]
                for destination, columns in self.by_destination.items()
                if column in columns
            }
            rows = {
                destination: merged(chain(*requests))
                for destination, requests in by_destination.items()
                if requests is not None
            }
            if not rows:
                yield column, None, frozenset(by_destination)
            elif len(set(rows.values())) == 1:
                yield column, next(iter(rows.values())), frozenset(rows)
            else:
                yield from ((column, ranges, readers) for readers, ranges in _by_readers(rows).items())


def _by_readers(rows: Mapping[Destination, RowRanges]) -> dict[frozenset[Destination], RowRanges]:
    """The rows that each set of destinations reads and no other destination does.

    >>> list(_by_readers({"a": ((0, 4),), "b": ((2, 4),)}).values())
    [((0, 2),), ((2, 4),)]
    """
    begins: dict[int, list[Destination]] = {}
    ends: dict[int, list[Destination]] = {}
    for destination, ranges in rows.items():
        for first, last in ranges:
            if first < last:
                begins.setdefault(first, []).append(destination)
                ends.setdefault(last, []).append(destination)
    # Sweep over the row numbers at which some destination begins or ends to read.
    by_readers: dict[frozenset[Destination], list[RowRange]] = {}
    reading: set[Destination] = set()
    for low, high in pairwise(sorted({*begins, *ends})):
        reading.difference_update(ends.get(low, ()))
        reading.update(begins.get(low, ()))
        if reading:
            by_readers.setdefault(frozenset(reading), []).append((low, high))
    without_rows = frozenset(
        destination for destination, ranges in rows.items() if all(first == last for first, last in ranges)
    )
    if without_rows:  # even of no rows a reader needs the dtype and the shape
        by_readers.setdefault(without_rows, []).append((0, 0))
    return {readers: merged(ranges) for readers, ranges in by_readers.items()}


def outgoing_payloads(context: RoutingContext, segment_of: Mapping[int, int]) -> Outgoing:
    """What is read elsewhere, as one payload for all slices of a process that the same readers need."""
    broadcast = broadcasts(context.plan, context.dependencies, context.topology.direct_groups)
    driver_alone = frozenset({context.topology.host_of(DRIVER_PROCESS)})
    bundles: dict[tuple[int, Process], dict[Audience, list[ColumnSlice]]] = {}
    for (node, chunk, direct), remote in _remote_reads(context, segment_of.keys()).items():
        bundle = bundles.setdefault((segment_of[node], context.maker(node, chunk)), {})
        for column, rows, destinations in remote.slices():
            audience = direct, destinations, broadcast.get(node, ())
            bundle.setdefault(audience, []).append(ColumnSlice(node, chunk, column, rows))
    return {
        (segment, process): {
            audience: Payload(
                key=(segment, DRIVER_RANK if process == DRIVER_PROCESS else process[1], number),
                slices=tuple(slices),
                direct=audience[0],
                broadcast=audience[2],
                inline=audience[1] == driver_alone and all(_is_number(context.plan, part) for part in slices),
            )
            for number, (audience, slices) in enumerate(bundle.items())
        }
        for (segment, process), bundle in bundles.items()
    }


def _is_number(plan: Plan, part: ColumnSlice) -> bool:
    """Whether a slice is a metric, or a plain number as the whole of a result or of each entry of one."""
    result_type = plan.node(part.node).result
    kind = result_type.inner if isinstance(result_type, ListType) else result_type
    if isinstance(kind, StaticType):
        return kind.annotation in (bool, int, float)
    return isinstance(stored_spec(result_type, part.column), MetricSpec) and not plan.layouts[part.node].lists


def _remote_reads(context: RoutingContext, nodes: AbstractSet[int]) -> Mapping[tuple[int, int, bool], RemoteReads]:
    """What is read elsewhere of each (node, chunk, direct), before pruning is applied to it.

    With column pruning off all columns of a value leave if one does; with row pruning off all rows of its chunk.
    """
    switches, reader = context.plan.optimize, unfetched(context.plan, context.table)
    remote_reads: dict[tuple[int, int, bool], RemoteReads] = {}

    def add(channel: Channel, node: int, chunk: int, columns: tuple[str, ...], rows: RowRanges | None) -> None:
        direct, destination = channel
        remote = remote_reads.setdefault((node, chunk, direct), RemoteReads())
        bounds = context.table.bounds.get(node)
        every_row = ((0, bounds[chunk + 1] - bounds[chunk] if bounds else 0),)
        needed = rows if switches.row_pruning and destination is not ANY_HOST else None
        pruned = switches.column_pruning or is_weight(columns[0])
        for column in columns if pruned else _columns(context.plan, node):
            remote.add(destination, column, (needed or every_row) if reader.has_rows(node, column) else None)

    # Columns whose readers are not known yet leave whole, before anything else is looked at.
    for node, direct in (key for key in context.open_columns if key[0] in nodes):
        for chunk in range(context.plan.layouts[node].chunks):
            for column in context.open_columns[node, direct]:
                destination = context.topology.host_of(DRIVER_PROCESS) if is_weight(column) else ANY_HOST
                add((direct, destination), node, chunk, (column,), None)
    # Ranks that are given the same chunk share its Read objects: by identity, each is added once per channel.
    added: set[tuple[bool, Destination, int]] = set()
    for process, read in context.all_reads():
        channel = context.channel(process, read)
        if not context.in_place(process, read) and (*channel, id(read)) not in added:
            added.add((*channel, id(read)))
            add(channel, read.node, read.chunk, read.columns, read.rows)
    return remote_reads


def _columns(plan: Plan, node: int) -> tuple[str, ...]:
    kind = plan.node(node).result
    kind = kind.inner if isinstance(kind, ListType) else kind
    return tuple(schema(kind.record).fields) if isinstance(kind, RecordType) else (VALUE,)


# -- who receives it


class DeliveryPlan:
    """Assigns payloads to the calls that read them, each to a process once, and tracks what each process reads last."""

    def __init__(self, context: RoutingContext, outgoing: Outgoing) -> None:
        self._context = context
        self._slices: dict[tuple[int, int, Channel], dict[PayloadKey, dict[str, RowRanges | None]]] = {}
        self._nodes: dict[PayloadKey, tuple[int, ...]] = {}
        for payloads in outgoing.values():
            for (direct, destinations, _), payload in payloads.items():
                self._nodes[payload.key] = tuple(dict.fromkeys(part.node for part in payload.slices))
                for part in payload.slices:
                    for destination in destinations:
                        holders = self._slices.setdefault((part.node, part.chunk, (direct, destination)), {})
                        holders.setdefault(payload.key, {})[part.column] = part.rows
        self._received: dict[Process, set[PayloadKey]] = {}
        self._last_reader: dict[Process, dict[int, int]] = {}
        self._read_in_place: dict[Process, set[int]] = {}

    def keys(self, process: Process, process_reads: Iterable[Read]) -> tuple[PayloadKey, ...]:
        """The payloads that hold what a process reads."""
        return tuple(dict.fromkeys(key for read in process_reads for key in self._holding(process, read)))

    def receive(self, process: Process, step: int, process_reads: Iterable[Read]) -> tuple[PayloadKey, ...]:
        """The payloads that a process needs for a step and has not received before; call it in program order."""
        last = self._last_reader.setdefault(process, {})
        read_in_place = self._read_in_place.setdefault(process, set())
        for read in process_reads:
            last[read.node] = step
            if self._context.in_place(process, read):
                read_in_place.add(read.node)
        received = self._received.setdefault(process, set())
        new = tuple(key for key in self.keys(process, process_reads) if key not in received)
        for node in (node for key in new for node in self._nodes[key]):
            last.setdefault(node, step)  # the payload also holds values that only other processes here read
        # The driver stores payloads by key for the whole step, so it lists all that it needs, each time.
        if process != DRIVER_PROCESS:
            received.update(new)
        return new

    def tasks(self, segment: Segment, outgoing: Outgoing) -> dict[int, Task]:
        """Every rank's part of a segment, once ``receive`` has been called for all steps."""
        steps: dict[int, tuple[int, ...]] = dict.fromkeys(segment.ranks, ())
        for step in segment.steps:
            for rank in step.ranks:
                steps[rank] = (*steps[rank], step.node)
        return {
            rank: self._task(segment, rank, rank_steps, outgoing.get((segment.number, (segment.group, rank)), {}))
            for rank, rank_steps in steps.items()
        }

    def _task(self, segment: Segment, rank: int, steps: tuple[int, ...], payloads: Mapping[Audience, Payload]) -> Task:
        process, late_reads = (segment.group, rank), self._context.late_reads
        sends = tuple(payloads.values())
        if process == DRIVER_PROCESS:  # it may have to return any of its values
            return Task(steps=steps, sends=sends, keeps=frozenset(steps), drops={})
        # A step that still waits for a query has no reads yet: what its group may read is kept and not dropped.
        drops = dict[int, tuple[int, ...]]()
        if self._context.plan.optimize.liveness:
            for node, step in self._last_reader.get(process, {}).items():
                if step in steps and (segment.group, node) not in late_reads:
                    drops[step] = (*drops.get(step, ()), node)
        late = {node: self._context.plan.layouts[node] for node in steps if (segment.group, node) in late_reads}
        kept = (node for node, layout in late.items() if layout.group == segment.group and rank in layout.holders)
        keeps = frozenset({*kept, *self._read_in_place.get(process, set()).intersection(steps)})
        return Task(steps=steps, sends=sends, keeps=keeps, drops=drops)

    def _holding(self, process: Process, read: Read) -> Iterator[PayloadKey]:
        if self._context.in_place(process, read):
            return
        for key, columns in self._slices[read.node, read.chunk, self._context.channel(process, read)].items():
            if any(name in columns and _overlap(columns[name], read.rows) for name in read.columns):
                yield key


def _overlap(ranges: RowRanges | None, rows: RowRanges | None) -> bool:
    """Whether some of these rows are in the ranges, both in order; a read of no rows matches any ranges."""
    if ranges is None or rows is None or ranges == rows or rows[0][0] == rows[0][1]:
        return True
    ends = [last for _, last in ranges]
    starts = (bisect_right(ends, first) for first, _ in rows)
    return any(i < len(ranges) and ranges[i][0] < last for i, (_, last) in zip(starts, rows, strict=True))
