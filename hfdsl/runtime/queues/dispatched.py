"""The rows that one dispatch put into a queue: the calls that make its groups, and the handles of their payloads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hfdsl.plan.payloads import DRIVER_RANK, ColumnSlice, PayloadKey
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.reading import Read, locating_reader
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.ranges import NO_ROWS, RowRanges, merged
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.queues.groups import kept_groups
from hfdsl.runtime.queues.rows import SentTable
from hfdsl.runtime.queues.stage_plans import StagedQueue
from hfdsl.runtime.queues.stage_run import StageRun

Place = tuple[int, int]
"""A node and a chunk of its value."""


class KnownRows:
    """Facts about a row table, shared by all dispatches of a queue that use this table.

    ``places`` maps rows to the chunks that hold them, ``in_front`` maps columns to rows of the batch in front, and
    ``keys`` maps rows and columns to the payloads that hold them. ``of_driver`` are the slices that the driver holds,
    computed when they are first needed.
    """

    def __init__(self, table: RowTable) -> None:
        self.table = SentTable(table)
        self.places: dict[tuple[int, int], frozenset[Place]] = {}
        self.in_front: dict[str, list[int]] = {}
        self.of_driver: tuple[ColumnSlice, ...] | None = None
        self.keys: dict[tuple[RowRanges, tuple[str, ...] | None], tuple[PayloadKey, ...]] = {}


@dataclass(slots=True)
class Dispatched:
    """One dispatch under a version, with its ``groups``; ``kept`` are the groups that filters kept, in this order.

    ``queries`` are the results of runtime queries. ``handles`` maps the key of each payload to its slices and its
    handle. ``step`` is None for a dispatch of an earlier run, all of whose groups have ended. ``noted`` are the calls,
    by node and rank, whose loads in flight have been recorded.
    """

    number: int
    queue: StagedQueue
    table: RowTable
    groups: tuple[int, ...]
    sizes: Mapping[Any, int]
    step: StageRun | None = None
    version: int = 0
    queries: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    handles: dict[PayloadKey, tuple[tuple[ColumnSlice, ...], Any]] = field(default_factory=dict)
    noted: set[tuple[int, int]] = field(default_factory=set)
    kept: Mapping[int, int] = field(init=False, repr=False)  # places by group
    _gone: int = field(default=0, init=False, repr=False)  # how many groups handles were dropped for
    known: KnownRows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.known = KnownRows(self.table)
        self._find_groups()

    def know(self, other: Dispatched | None) -> None:
        """Share the known facts about rows with a dispatch that has the same table."""
        if other is not None and other.table is self.table:
            self.known = other.known

    def settle(self, table: RowTable) -> None:
        """Take the row table that follows from the results of runtime queries."""
        if table is not self.table:
            self.table, self.known = table, KnownRows(table)
            self._find_groups()

    def _find_groups(self) -> None:
        groups = self.groups
        if self.queue.loses and self.queue.rows_of in self.table.rows:
            groups = tuple(groups[place] for place in kept_groups(self.queue, self.table, len(groups)))
        self.kept = {group: place for place, group in enumerate(groups)}

    def rows(self, group: int) -> tuple[int, int]:
        """The rows of a kept group, among the rows that the dispatch put in."""
        size, place = self.queue.queue.group, self.kept[group]
        return place * size, (place + 1) * size

    def row_in_front(self, column: str, row: int) -> int:
        """The row of the batch in front that a row of a handed-on column comes from."""
        if column not in self.known.in_front:
            reader, node = locating_reader(self.queue.producer, self.table), self.queue.rows_of
            located = (next(reader.sources(node, (column,), ((i, i + 1),))) for i in range(self.table.rows[node]))
            self.known.in_front[column] = [start for _, _, ((start, _), *_) in located]
        return self.known.in_front[column][row]

    def reads(self, ranges: RowRanges, columns: Iterable[str] | None = None) -> Iterator[Read]:
        """The chunks of stored values that have some of these rows, and the rows within each chunk."""
        reader = locating_reader(self.queue.producer, self.table)
        for column in columns if columns is not None else self.queue.sources:
            source, name = self.queue.sources[column]
            for node, stored, inner in reader.sources(source, (name,), ranges):
                for chunk, rows in reader.overlap(node, merged(inner)).items():
                    yield Read(node, chunk, stored, rows)

    def places(self, group: int) -> frozenset[Place]:
        """The chunks that hold rows of a group; computed once per table, since every ended call asks for them."""
        if group not in self.kept:
            return frozenset()
        rows = self.rows(group)
        if rows not in self.known.places:
            self.known.places[rows] = frozenset((read.node, read.chunk) for read in self.reads((rows,)))
        return self.known.places[rows]

    def keep_handles(self, backend: Backend) -> None:
        """Take over the handles that the step sends for the queue; waits for runtime queries."""
        if self.step is None or self.handles:
            return
        self.step.resolve()
        self.settle(self.step.table)
        self.queries = self.step.queries
        self.handles = dict(self.step.taken_results())
        if self.known.of_driver is None:
            self.known.of_driver = tuple(self._of_driver())
        if self.known.of_driver:
            content = {part: self.step.driver_rows(part) for part in self.known.of_driver}
            self.handles[DRIVER_PAYLOAD] = (self.known.of_driver, backend.put(self.queue.producer, content))

    def _of_driver(self) -> Iterator[ColumnSlice]:
        """The slices of the rows that the driver itself holds, such as columns of the caller's inputs."""
        rows = self.table.rows.get(self.queue.rows_of, 0)
        for read in self.reads(((0, rows),)) if rows else ():
            if self.queue.producer.layouts[read.node].group == DRIVER:
                yield ColumnSlice(read.node, read.chunk, read.columns[0], read.rows)

    def keys(self, ranges: RowRanges, columns: Sequence[str] | None = None) -> tuple[PayloadKey, ...]:
        """The payloads that hold these rows; for ``NO_ROWS``, the first remaining ones."""
        request = ranges, None if columns is None else tuple(columns)
        if ranges == NO_ROWS:
            return self._holding(*request)
        if request not in self.known.keys:  # a request for rows has all payloads that hold them
            self.known.keys[request] = self._holding(*request)
        return self.known.keys[request]

    def _holding(self, ranges: RowRanges, columns: Sequence[str] | None) -> tuple[PayloadKey, ...]:
        ranges_read: dict[tuple[int, int, str], list[RowRanges]] = {}
        for read in self.reads(ranges, columns):
            for column in read.columns:
                ranges_read.setdefault((read.node, read.chunk, column), []).append(read.rows or ())
        return tuple(
            key
            for key, (slices, _) in self.handles.items()
            if any(
                _overlap(part.rows, rows)
                for part in slices
                for rows in ranges_read.get((part.node, part.chunk, part.column), ())
            )
        )

    def payloads(self, backend: Backend, groups: Iterable[int]) -> list[tuple[tuple[ColumnSlice, ...], Any]]:
        """The payloads with rows of these groups: the slices and the handle of each."""
        self.keep_handles(backend)
        keys = dict.fromkeys(key for group in groups if group in self.kept for key in self.keys((self.rows(group),)))
        return [self.handles[key] for key in keys]

    def restore(self, payloads: Iterable[tuple[tuple[ColumnSlice, ...], Any]]) -> None:
        """Continue with payloads that an earlier run saved."""
        self.handles |= {(SAVED_SEGMENT, DRIVER_RANK, index): payload for index, payload in enumerate(payloads)}

    def forget(self, gone: Collection[int]) -> None:
        """Drop the handles of payloads that only finished groups used; called whenever a call ends."""
        if len(gone) == self._gone:  # what is gone stays gone
            return
        self._gone, remaining = len(gone), self.kept.keys() - set(gone)
        needed = {key for group in remaining for key in self.keys((self.rows(group),))}
        self.handles = {key: entry for key, entry in self.handles.items() if key in needed}


SAVED_SEGMENT = -3
"""The segment number that stands for a checkpoint."""

DRIVER_PAYLOAD: PayloadKey = (-2, DRIVER_RANK, 0)
"""The payload of data in the driver itself, such as columns of the caller's inputs."""


def _overlap(held: RowRanges | None, ranges: RowRanges) -> bool:
    """Whether a slice has some rows of these ranges."""
    return held is None or any(max(start, first) < min(stop, last) for start, stop in held for first, last in ranges)
