"""Reads of batches from queues: rows of several dispatches, by column.

A worked example, two queues in a row, with groups of one row. The stage between them makes scores and hands the tokens
on. An update takes groups 4 and 1 of the second queue, which were made of groups 6 and 2 of the first one::

    score     rows of groups 4 and 1, in the payloads that the stage between has sent
    tokens    rows of groups 6 and 2, in the payloads that the first stage has sent

So a process reads each column where it was made, and gets a recipe (``QueuedRows``) for all columns of one queue. The
driver needs only numbers: the group from which each group was made (``QueuedGroup.of``), and its dispatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hfdsl.plan.payloads import ColumnSlice
from hfdsl.protocols.ranges import NO_ROWS, as_ranges
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.rows import QueuedPart, QueuedRows, QueueRead, needed_rows
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.schedule import QueueBatch, QueuedGroup, QueueSpec

GroupRow: TypeAlias = tuple[QueuedGroup, int | None]
"""A row of a group; None for a reader without rows, which still sees dtypes and shapes."""


@dataclass(frozen=True, slots=True)
class MadeRows:
    """Rows of groups in the queue of the stage that made them."""

    queue: int
    rows: Sequence[GroupRow]


@dataclass(frozen=True, slots=True)
class QueueReader:
    """Finds the rows of groups; ``dispatched`` has the dispatches whose groups may be read, by queue and number."""

    stages: QueueStages
    specs: Sequence[QueueSpec]
    dispatched: Sequence[Mapping[int, Dispatched]]

    def dispatch_of(self, queue: int, group: int) -> Dispatched:
        """The dispatch that contains a group."""
        return self.dispatched[queue][group // self.specs[queue].dispatch]

    def read(self, batches: Mapping[int, QueueBatch], slices: Sequence[ColumnSlice]) -> QueueRead:
        """The reads of a process from batches, by queue."""
        recipes, handles = list[QueuedRows](), list[Any]()
        for queue, batch in batches.items():
            staged = self.stages.queues[queue]
            of_queue = [part for part in slices if part.node == staged.queue_input]
            ranges, size = needed_rows(of_queue), staged.queue.group
            rows: list[GroupRow] = [
                (batch.groups[row // size], row % size) for start, stop in ranges for row in range(start, stop)
            ]
            masked = tuple(place for place, (group, _) in enumerate(rows) if group.number in batch.masked)
            for maker_rows, names in self._by_maker(queue, rows or [(batch.groups[0], None)], of_queue):
                maker = self.stages.queues[maker_rows.queue]
                parts = list(self._parts(maker_rows, [*names.values()]))
                handles += [handle for _, of_part in parts for handle in of_part]
                recipe = QueuedRows(
                    slices=tuple(part for part in of_queue if part.column in names),
                    rows=ranges,
                    plan=maker.producer.name,
                    sources={column: maker.sources[name] for column, name in names.items()},
                    parts=tuple(part for part, _ in parts),
                    masks=staged.masks,
                    masked=masked,
                )
                recipes.append(recipe)
        return QueueRead(tuple(recipes), tuple(handles))

    def _by_maker(
        self, queue: int, rows: Sequence[GroupRow], slices: Sequence[ColumnSlice]
    ) -> Iterator[tuple[MadeRows, dict[str, str]]]:
        """The origins of columns: rows of a queue, and the original name of each column made with these rows."""
        by_maker = list[tuple[MadeRows, dict[str, str]]]()
        for column in dict.fromkeys(part.column for part in slices):
            maker_rows, name = self._maker_of(queue, rows, column)
            names = next((entry_names for entry_rows, entry_names in by_maker if entry_rows == maker_rows), None)
            if names is None:
                names = {}
                by_maker.append((maker_rows, names))
            names[column] = name
        yield from by_maker

    def _maker_of(self, queue: int, rows: Sequence[GroupRow], column: str) -> tuple[MadeRows, str]:
        """The origin of a column, and its name there."""
        while (name := self.stages.queues[queue].through.get(column)) is not None:
            in_front = self.in_front(queue)
            size, maker_rows = self.stages.queues[in_front].queue.group, list[GroupRow]()
            for group, row in rows:
                if group.of is None:
                    raise LookupError(group)
                dispatch, inner = self.dispatch_of(queue, group.number), None
                if row is not None:
                    inner = dispatch.row_in_front(column, dispatch.rows(group.number)[0] + row) % size
                maker_rows.append((group.of, inner))
            queue, column, rows = in_front, name, maker_rows
        return MadeRows(queue, rows), column

    def _parts(self, maker_rows: MadeRows, columns: Sequence[str]) -> Iterator[tuple[QueuedPart, list[Any]]]:
        """The rows by dispatch, in order, each with the handles of its payloads."""
        by_dispatch = list[tuple[Dispatched, list[int]]]()
        for group, row in maker_rows.rows:
            dispatch = self.dispatch_of(maker_rows.queue, group.number)
            if not by_dispatch or by_dispatch[-1][0] is not dispatch:
                by_dispatch.append((dispatch, []))
            by_dispatch[-1][1].extend([] if row is None else [dispatch.rows(group.number)[0] + row])
        for dispatch, chosen in by_dispatch:
            ranges = as_ranges(chosen) or NO_ROWS
            keys = dispatch.keys(ranges, columns)
            part = QueuedPart(dispatch.number, dispatch.known.table, ranges, len(keys))
            yield part, [dispatch.handles[key][1] for key in keys]

    def dispatches_of(self, batches: Mapping[int, QueueBatch]) -> Iterator[Dispatched]:
        """The dispatches that contain the groups of batches."""
        for queue, batch in batches.items():
            for number in dict.fromkeys(group.number // self.specs[queue].dispatch for group in batch.groups):
                yield self.dispatched[queue][number]

    def in_front(self, queue: int) -> int:
        """The queue in front of the stage that feeds a queue."""
        [in_front] = self.stages.links.read_by(self.stages.links.of[queue].feeds)
        return in_front

    def made_of(self, queue: int, groups: Iterable[QueuedGroup]) -> Iterator[tuple[int, QueuedGroup]]:
        """The groups to read for a queue's groups, with their queues: themselves and those they were made from."""
        for group in groups:
            yield queue, group
            if self.stages.queues[queue].through and group.of is not None:
                yield from self.made_of(self.in_front(queue), [group.of])

    def rows_version(self, queue: int, group: QueuedGroup) -> int:
        """The version under which a group's rows were made."""
        while self.stages.links.of[queue].keeps_versions and group.of is not None:
            queue, group = self.in_front(queue), group.of
        return group.version

    def versions(self, batches: Mapping[int, QueueBatch]) -> list[tuple[int, int, int]]:
        """The node of the queue, the end, and the version under which the rows were made, for each group."""
        return [
            (
                self.stages.queues[queue].queue_input,
                (position + 1) * self.stages.queues[queue].queue.group,
                self.rows_version(queue, group),
            )
            for queue, batch in batches.items()
            for position, group in enumerate(batch.groups)
        ]
