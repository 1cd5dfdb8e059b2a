"""Deliveries: which payloads leave each process at the end of a segment, and which calls receive them.

An example. ``actor``, one rank, returns four rows of two columns. ``judge``, a rank on each of two hosts, reads the ids
of two rows each; ``reference``, one rank on a host of its own, reads both columns of all rows:

>>> import hfdsl as hf
>>> from hfdsl.plan.routes import compute_routes
>>> from hfdsl.plan.payloads import planned_topology
>>> from hfdsl.plan.rows import row_table
>>> class B(hf.Dim): ...
>>> class Prompts(hf.Batch):
...     text: hf.Obj[str, B]
>>> class Rollout(hf.Batch):
...     ids: hf.i64[B]
...     mask: hf.bool_[B]
>>> class Role(hf.Worker):
...     @hf.register(hf.Dispatch.DP_PROTO)
...     def generate(self, prompts: Prompts) -> Rollout: ...
...     @hf.register(hf.Dispatch.DP_PROTO)
...     def score(self, ids: hf.i64[B]) -> Prompts: ...
...     @hf.register(hf.Dispatch.DP_PROTO)
...     def compare(self, rollout: Rollout) -> Prompts: ...
>>> @hf.dataflow
... def flow(prompts: Prompts, actor: Role, judge: Role, reference: Role) -> tuple[Prompts, Prompts]:
...     rollout = actor.generate(prompts)
...     return judge.score(rollout.ids), reference.compare(rollout)
>>> deployment = hf.Deployment(
...     actor=hf.place(Role, pool=hf.ResourcePool([1])),
...     judge=hf.place(Role, pool=hf.ResourcePool([1, 1], use_gpu=False)),
...     reference=hf.place(Role, pool=hf.ResourcePool([1], use_gpu=False)),
... )
>>> plan = flow.compile(deployment, dims={B: 4})
>>> routes = compute_routes(plan, row_table(plan, {B: 4}), planned_topology(plan))
>>> generate, score, compare = routes.segments
>>> for payload in routes.tasks[generate.number][0].sends:
...     print(payload.key, *(f"{part.column}{part.rows}" for part in payload.slices))
(1, 0, 0) ids((0, 2),)
(1, 0, 1) ids((2, 4),)
(1, 0, 2) mask((0, 4),)
>>> routes.receives[score.number]
{0: ((1, 0, 0),), 1: ((1, 0, 1),)}
>>> routes.receives[compare.number]
{0: ((1, 0, 0), (1, 0, 1), (1, 0, 2))}

Three sets of destinations read something: the judge's first host and the reference's read rows 0 and 1 of the ids, the
judge's second host and the reference's rows 2 and 3, and the reference's alone the mask. Each set gets one payload, so
every row of a column leaves its process once, and no host receives a row that is not read there.

It happens in two steps. ``pack_payloads`` collects, per chunk, what each destination reads (``RemoteReads``), divides
the rows by the set of their destinations, and packs all slices of a process with the same *audience* into one payload.
``DeliveryPlan`` then goes through the steps in program order: a process receives a payload with the first step that
reads some of its rows, and drops a value after the last step that reads it there. ``hfdsl.plan.routes`` argues why this
is right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

from hfdsl.deploy.value_bytes import has_no_rows, is_plain_number
from hfdsl.graph.columns import is_row_weight, stored_spec
from hfdsl.graph.signatures import VALUE, ListType, RecordType
from hfdsl.plan.channels import Channel, RoutingContext
from hfdsl.plan.payloads import (
    ANY_HOST,
    DRIVER_PROCESS,
    DRIVER_RANK,
    ColumnSlice,
    Destination,
    Payload,
    PayloadKey,
    Process,
)
from hfdsl.plan.plan import Plan
from hfdsl.plan.reading import Read, Reader, locating_reader
from hfdsl.plan.scheduled import WEIGHTS_FOR
from hfdsl.plan.segments import Segment, Task
from hfdsl.protocols.ranges import RowRange, RowRanges, merged
from hfdsl.types.batches import schema
from hfdsl.types.columns import MetricSpec

# -- what leaves


class Sender(NamedTuple):
    """A process at the end of a segment; for the inputs of a step, the driver and ``CALLER``."""

    segment: int
    process: Process


class Audience(NamedTuple):
    """Who gets a payload: whether directly, its destinations, and who takes part in its broadcast or exchange."""

    direct: bool
    destinations: frozenset[Destination]
    broadcast: tuple[Process, ...]


class LeavingChunk(NamedTuple):
    """A chunk that is read elsewhere; what of it goes directly leaves apart from what goes through the object store."""

    node: int
    chunk: int
    direct: bool


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The payloads that leave each process at the end of each segment, and the destinations of each payload."""

    payloads: Mapping[Sender, tuple[Payload, ...]]
    destinations: Mapping[PayloadKey, frozenset[Destination]]

    def of(self, segment: int, process: Process) -> tuple[Payload, ...]:
        """The payloads that a process sends at the end of a segment."""
        return self.payloads.get(Sender(segment, process), ())

    @property
    def all_payloads(self) -> Iterator[Payload]:
        """Every payload."""
        return chain.from_iterable(self.payloads.values())


def pack_payloads(context: RoutingContext, segment_of: Mapping[int, int]) -> Outgoing:
    """Remote reads, as one payload for all slices of a process that the same readers need."""
    driver_alone = frozenset({context.topology.host_of(DRIVER_PROCESS)})
    slices: dict[Sender, dict[Audience, list[ColumnSlice]]] = {}
    for (node, chunk, direct), remote in _remote_reads(context, segment_of.keys()).items():
        by_audience = slices.setdefault(Sender(segment_of[node], context.producer(node, chunk)), {})
        for column, rows, destinations in remote.slices():
            together = context.exchanged.get(column) or context.broadcast.get(node, ())
            audience = Audience(direct, destinations, together)
            by_audience.setdefault(audience, []).append(ColumnSlice(node, chunk, column, rows))
    payloads: dict[Sender, tuple[Payload, ...]] = {}
    destinations_of: dict[PayloadKey, frozenset[Destination]] = {}
    for sender, by_audience in slices.items():
        rank = DRIVER_RANK if sender.process == DRIVER_PROCESS else sender.process[1]
        for index, (audience, parts) in enumerate(by_audience.items()):
            payload = Payload(
                key=(sender.segment, rank, index),
                slices=tuple(parts),
                direct=audience.direct,
                broadcast=audience.broadcast,
                inline=audience.destinations == driver_alone and all(_is_number(context.plan, part) for part in parts),
            )
            payloads[sender] = (*payloads.get(sender, ()), payload)
            destinations_of[payload.key] = audience.destinations
    return Outgoing(payloads, destinations_of)


def _is_number(plan: Plan, part: ColumnSlice) -> bool:
    """Whether a slice is a metric, or a plain number as the whole of a result or of each entry of one."""
    result_type = plan.node(part.node).result
    if has_no_rows(result_type):
        return is_plain_number(result_type)
    return isinstance(stored_spec(result_type, part.column), MetricSpec) and not plan.layouts[part.node].lists


def _remote_reads(context: RoutingContext, nodes: AbstractSet[int]) -> Mapping[LeavingChunk, RemoteReads]:
    """The remote reads of each chunk of these nodes."""
    reader = locating_reader(context.plan, context.table)
    remote_reads: dict[LeavingChunk, RemoteReads] = {}
    for channel, read in _requests(context, nodes):
        remote = remote_reads.setdefault(LeavingChunk(read.node, read.chunk, channel.direct), RemoteReads())
        for column, rows in _leaving_columns(context, reader, channel, read):
            remote.add(channel.destination, column, rows)
    return remote_reads


def _requests(context: RoutingContext, nodes: AbstractSet[int]) -> Iterator[tuple[Channel, Read]]:
    """Requests of remote processes for these nodes, each with its channel."""
    # Columns that leave whole come first: their payloads are the same whatever else is known.
    for (node, direct), columns in context.whole_columns.items():
        for chunk in range(context.plan.layouts[node].chunks) if node in nodes else ():
            for column in columns:
                destination = context.topology.host_of(DRIVER_PROCESS) if is_row_weight(column) else ANY_HOST
                yield Channel(direct, destination), Read(node, chunk, (column,), None)
    # Ranks that get the same chunk share its Read objects: by identity, each is requested once per channel.
    requested: set[tuple[Channel, int]] = set()
    for process, read in context.all_reads():
        channel = context.channel(process, read)
        if not context.in_place(process, read) and (channel, id(read)) not in requested:
            requested.add((channel, id(read)))
            yield channel, read


def _leaving_columns(
    context: RoutingContext, reader: Reader, channel: Channel, read: Read
) -> Iterator[tuple[str, RowRanges | None]]:
    """The columns and rows that leave for a read: those that are read, or more where pruning is off.

    Without column pruning all columns of a value leave if one does; without row pruning, or if the reader's rows are
    not known yet, all rows of its chunk.
    """
    plan, bounds = context.plan, context.table.bounds.get(read.node)
    every_row = ((0, bounds[read.chunk + 1] - bounds[read.chunk] if bounds else 0),)
    pruned_rows = read.rows if plan.optimize.row_pruning and channel.destination is not ANY_HOST else None
    derived = is_row_weight(read.columns[0]) or read.columns[0].startswith(WEIGHTS_FOR)
    pruned_columns = plan.optimize.column_pruning or derived
    for column in read.columns if pruned_columns else _columns(plan, read.node):
        yield column, (pruned_rows or every_row) if reader.has_rows(read.node, column) else None


def _columns(plan: Plan, node: int) -> tuple[str, ...]:
    result_type = plan.node(node).result
    entry_type = result_type.inner if isinstance(result_type, ListType) else result_type
    return tuple(schema(entry_type.record).fields) if isinstance(entry_type, RecordType) else (VALUE,)


@dataclass(slots=True)
class RemoteReads:
    """The rows of one chunk that other processes read: by column, for each destination.

    >>> remote = RemoteReads()
    >>> remote.add("judge's host", "ids", ((0, 2),))
    >>> remote.add("reference's host", "ids", ((0, 4),))
    >>> for column, rows, destinations in remote.slices():
    ...     print(column, rows, *sorted(destinations))
    ids ((0, 2),) judge's host reference's host
    ids ((2, 4),) reference's host
    """

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
    starting: dict[int, list[Destination]] = {}
    stopping: dict[int, list[Destination]] = {}
    for destination, ranges in rows.items():
        for start, stop in ranges:
            if start < stop:
                starting.setdefault(start, []).append(destination)
                stopping.setdefault(stop, []).append(destination)
    # Sweep over the row numbers at which some destination starts or stops to read.
    by_readers: dict[frozenset[Destination], list[RowRange]] = {}
    reading: set[Destination] = set()
    for start, stop in pairwise(sorted({*starting, *stopping})):
        reading.difference_update(stopping.get(start, ()))
        reading.update(starting.get(start, ()))
        if reading:
            by_readers.setdefault(frozenset(reading), []).append((start, stop))
    without_rows = frozenset(
        destination for destination, ranges in rows.items() if all(start == stop for start, stop in ranges)
    )
    if without_rows:  # even of no rows a reader needs the dtype and the shape
        by_readers.setdefault(without_rows, []).append((0, 0))
    return {readers: merged(ranges) for readers, ranges in by_readers.items()}


# -- who receives it


class ArrivingChunk(NamedTuple):
    """A chunk of a value as it arrives by a channel."""

    node: int
    chunk: int
    channel: Channel


class DeliveryPlan:
    """Assigns payloads to the calls that read them, each to a process once, and tracks what each process reads last."""

    def __init__(self, context: RoutingContext, outgoing: Outgoing) -> None:
        self._context = context
        self._outgoing = outgoing
        self._payloads = {payload.key: payload for payload in outgoing.all_payloads}
        self._arriving: dict[ArrivingChunk, list[tuple[PayloadKey, ColumnSlice]]] = {}
        for payload in outgoing.all_payloads:
            for destination in outgoing.destinations[payload.key]:
                channel = Channel(payload.direct, destination)
                for part in payload.slices:
                    arriving = self._arriving.setdefault(ArrivingChunk(part.node, part.chunk, channel), [])
                    arriving.append((payload.key, part))
        self._received: dict[Process, set[PayloadKey]] = {}
        self._last_reader: dict[Process, dict[int, int]] = {}  # by value: the last step that reads it there
        self._read_in_place: dict[Process, set[int]] = {}

    def keys(self, process: Process, process_reads: Iterable[Read]) -> tuple[PayloadKey, ...]:
        """The payloads that hold what a process reads."""
        return tuple(dict.fromkeys(key for read in process_reads for key in self._holding(process, read)))

    def receive(self, process: Process, step: int, process_reads: Iterable[Read]) -> tuple[PayloadKey, ...]:
        """The payloads that a process needs for a step and has not received before; call it in program order."""
        last_reader = self._last_reader.setdefault(process, {})
        read_in_place = self._read_in_place.setdefault(process, set())
        for read in process_reads:
            last_reader[read.node] = step
            if self._context.in_place(process, read):
                read_in_place.add(read.node)
        received = self._received.setdefault(process, set())
        new = tuple(key for key in self.keys(process, process_reads) if key not in received)
        for part in (part for key in new for part in self._payloads[key].slices):
            last_reader.setdefault(part.node, step)  # the payload also holds values that only other processes here read
        # The driver stores payloads by key for the whole step, so it lists all that it needs, each time.
        if process != DRIVER_PROCESS:
            received.update(new)
        return new

    def tasks(self, segment: Segment) -> dict[int, Task]:
        """Every rank's part of a segment, once ``receive`` has been called for all steps."""
        steps: dict[int, tuple[int, ...]] = dict.fromkeys(segment.ranks, ())
        for step in segment.steps:
            for rank in step.ranks:
                steps[rank] = (*steps[rank], step.node)
        return {rank: self._task(segment, (segment.group, rank), rank_steps) for rank, rank_steps in steps.items()}

    def _task(self, segment: Segment, process: Process, steps: tuple[int, ...]) -> Task:
        group, rank = process
        sends = self._outgoing.of(segment.number, process)
        if process == DRIVER_PROCESS:  # it may have to return any of its values
            return Task(steps=steps, sends=sends, keeps=frozenset(steps), drops={})
        # Which rows a pending step reads is not known: what its group may read is kept and not dropped.
        plan, pending_reads = self._context.plan, self._context.pending_reads
        drops = dict[int, tuple[int, ...]]()
        if plan.optimize.liveness:
            for node, step in self._last_reader.get(process, {}).items():
                if step in steps and (group, node) not in pending_reads:
                    drops[step] = (*drops.get(step, ()), node)
        pending = {node: plan.layouts[node] for node in steps if (group, node) in pending_reads}
        held = (node for node, layout in pending.items() if layout.group == group and rank in layout.holders)
        keeps = frozenset({*held, *self._read_in_place.get(process, set()).intersection(steps)})
        return Task(steps=steps, sends=sends, keeps=keeps, drops=drops)

    def _holding(self, process: Process, read: Read) -> Iterator[PayloadKey]:
        if self._context.in_place(process, read):
            return
        for key, part in self._arriving[ArrivingChunk(read.node, read.chunk, self._context.channel(process, read))]:
            if part.column in read.columns and _overlap(part.rows, read.rows):
                yield key


def _overlap(ranges: RowRanges | None, rows: RowRanges | None) -> bool:
    """Whether some of these rows are in the ranges, both in order; a read of no rows matches any ranges."""
    if ranges is None or rows is None or ranges == rows or rows[0][0] == rows[0][1]:
        return True
    stops = [stop for _, stop in ranges]
    following = (bisect_right(stops, start) for start, _ in rows)
    return any(i < len(ranges) and ranges[i][0] < stop for i, (_, stop) in zip(following, rows, strict=True))
