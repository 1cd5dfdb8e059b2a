"""Rows that a stage takes from a queue: rows of several dispatches, joined in the process that reads them.

A worked example. Two dispatches of four rows each went into the queue, two rows from each of two engine ranks; update 0
takes groups 0, 1, 4 and 5, which are rows 0:2 of either dispatch. An actor rank reads the first three of them::

    payload of dispatch 0, engine rank 0    rows 0:2 of its chunk 0
    payload of dispatch 1, engine rank 0    rows 0:2 of its chunk 0
    QueuedRows                              rows 0:2 of dispatch 0, then 0:1 of dispatch 1: three rows of the queue

The driver sends the handles of both payloads with the call, and this recipe. The rank reads rows of each dispatch as a
reader of that step would (``Reader``), one part after another, and continues as if the result had come as one payload.

Why it is right. A part names rows among those that the producing step put in, and a reader with that step's row table
finds any of them; the payloads cover all chunks that have some of these rows. The parts are in the order of the queue's
rows, so concatenated they are the requested rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from hfdsl.errors import ResourceError, WiringError
from hfdsl.graph.program import Input, Ref
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Reader, locating_reader
from hfdsl.plan.rows import RowTable, argument_rows
from hfdsl.protocols.ranges import RowRanges, merged
from hfdsl.runtime.rank.store import DELIVERIES, PayloadContent, Store, UndeliveredError
from hfdsl.types.joining import all_present, picked_rows, rows_after_rows
from hfdsl.types.ragged import Jagged


class SentTable:
    """A row table that is pickled once for all dispatches that have it, and unpickled once by each process."""

    def __init__(self, table: RowTable, pickled: bytes | None = None) -> None:
        self.table, self._pickled = table, pickled

    def __reduce__(self) -> tuple[Callable[[bytes], SentTable], tuple[bytes]]:
        if self._pickled is None:
            self._pickled = pickle.dumps(self.table)
        return _received_table, (self._pickled,)


@lru_cache(maxsize=64)
def _received_table(pickled: bytes) -> SentTable:
    return SentTable(pickle.loads(pickled), pickled)  # what the driver of this run has pickled


class QueuedPart(NamedTuple):
    """Rows from one dispatch in a queue, and the number of their payloads."""

    dispatch: int
    table: SentTable
    rows: RowRanges
    payloads: int


class QueuedRows(NamedTuple):
    """A rank's read from a queue: ``slices`` of the queue's value, whose ``rows`` are those of parts.

    ``sources`` maps each column to the node and column that ``plan`` put in. Rows in ``masked`` get zeros in the
    columns ``masks``. It travels with every call, and a named tuple is pickled faster than a data class.
    """

    slices: tuple[ColumnSlice, ...]
    rows: RowRanges
    plan: str
    sources: Mapping[str, tuple[int, str]]
    parts: tuple[QueuedPart, ...]
    masks: tuple[str, ...] = ()
    masked: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueRead:
    """A rank's read from queues, as the driver has it: with the handles of the payloads of all parts, in order."""

    rows: tuple[QueuedRows, ...]
    handles: tuple[Any, ...]


def received(
    plans: Mapping[str, Plan], payloads: Sequence[PayloadContent], queued: Sequence[QueuedRows]
) -> Iterator[PayloadContent]:
    """A call's payloads, separated from the last ones, which are parts of rows from a queue."""
    parts = sum(part.payloads for rows in queued for part in rows.parts)
    yield from payloads[: len(payloads) - parts]
    others = iter(payloads[len(payloads) - parts :])
    for rows in queued:
        contents = [[next(others) for _ in range(part.payloads)] for part in rows.parts]
        yield joined(plans[rows.plan], rows, contents)


def joined(plan: Plan, queued: QueuedRows, contents: Sequence[Sequence[PayloadContent]]) -> PayloadContent:
    """The requested rows, from the payloads of each part.

    Raises:
        WiringError: HF805 if dispatches have rows of different shapes, HF810 if only some have a column.
        ResourceError: HF518 if a payload of a part is another one.
    """
    readers = []
    for part, payloads in zip(queued.parts, contents, strict=True):
        store = Store()
        for content in payloads:
            store.receive(content)
        readers.append(Reader(plan.graph.nodes, plan.layouts, part.table.table, store.read))
    content = dict[ColumnSlice, Any]()
    for part_of in queued.slices:
        node, column = queued.sources[part_of.column]
        try:
            values = [
                reader.column(node, column, part.rows) for reader, part in zip(readers, queued.parts, strict=True)
            ]
        except UndeliveredError as missing:
            value = plan.node(missing.node)
            text = f"column '{missing.column}' of '{value.label}' ({value.span}) has rows in a queue"
            raise ResourceError("HF518", f"{text}, and {DELIVERIES}") from None
        value = _rows(part_of.column, values, queued)
        if value is not None and part_of.column in queued.masks and queued.masked:
            value = _masked(value, queued.masked)
        content[part_of] = picked_rows(value, _places(part_of.rows or (), queued.rows))
    return content


def _places(ranges: RowRanges, held: RowRanges) -> list[int] | None:
    """The places of rows among the sorted rows that are held; None if they are exactly these."""
    if ranges == held:
        return None
    place = {row: i for i, row in enumerate(row for start, stop in held for row in range(start, stop))}
    return [place[row] for start, stop in ranges for row in range(start, stop)]


def _rows(column: str, values: Sequence[Any], queued: QueuedRows) -> Any:
    """The rows of all parts, concatenated."""
    names = [f"dispatch {part.dispatch}" for part in queued.parts]
    if not all_present(f"column '{column}' of the queue", values, names):
        return None
    tensors = (value for value in values if hasattr(value, "untyped_storage") and not isinstance(value, Jagged))
    shapes = [list(value.shape[1:]) for value in tensors]
    for name, shape in zip(names[1:], shapes[1:], strict=False):
        if shape != shapes[0]:
            raise WiringError(
                "HF805",
                f"column '{column}' of the queue has rows of shape {shapes[0]} from {names[0]}, {shape} from {name}: "
                "they cannot form one column; give rows the same length in all steps, or make the column ragged",
            )
    return rows_after_rows(values)


def _masked(value: Any, rows: Sequence[int]) -> Any:
    """A column with zeros in some rows."""
    if isinstance(value, Jagged):
        values = value.values.clone()
        for row in rows:
            values[int(value.offsets[row]) : int(value.offsets[row + 1])] = 0
        return Jagged(values, value.offsets)
    value = value.clone()
    value[list(rows)] = 0
    return value


def queued_versions(
    plan: Plan, table: RowTable, step: Step, chunk: int, versions: Sequence[Sequence[int]]
) -> tuple[int, ...] | None:
    """The versions under which a chunk's rows were made, from those of the rows taken from queues.

    ``versions`` has runs of rows, each with the node of its queue, its end and its version; None for a call whose rows
    do not come from a queue.
    """
    if step.rows_from is None or step.node not in table.splits:
        return None
    node, ranges = step.rows_from, argument_rows(table, step, Ref(step.rows_from), chunk)
    rows = [row for start, stop in ranges for row in range(start, stop)]
    traced = input_rows(plan, table, node, rows)
    if traced is None:
        return None
    by_row = list[int]()
    for queue, stop, version in versions:
        by_row += [version] * (stop - len(by_row)) if queue == traced[0] else []
    return tuple(by_row[row] for row in traced[1])


def input_rows(plan: Plan, table: RowTable, node: int, rows: Sequence[int]) -> tuple[int, list[int]] | None:
    """The input of the plan, and its rows, from which rows of a value are made; None if unknown."""
    return traced_rows(plan, table, node, rows, lambda source: isinstance(plan.node(source).op, Input))


def traced_rows(
    plan: Plan, table: RowTable, node: int, rows: Sequence[int], stop: Callable[[int], bool]
) -> tuple[int, list[int]] | None:
    """The value at which tracing back from ``node`` should ``stop``, and its rows from which the given rows are made.

    A call makes the same number of rows from each of its input rows. None if it is unknown from which rows a value is
    made.
    """
    steps = {step.node: step for step in plan.steps}
    reader, rows = locating_reader(plan, table), list(rows)
    while not stop(node):
        if node in steps:
            source = steps[node].rows_from
            if source is None or source not in table.rows or (rows and not table.rows.get(node)):
                return None
            rows = [row * table.rows[source] // table.rows[node] for row in rows]
        else:
            ref = next(iter(plan.node(node).refs), None)
            if ref is None:
                return None
            source = ref.node
            rows = [reader.source_rows(node, ((row, row + 1),))[0][0] for row in rows]
        node = source
    return node, rows


def needed_rows(slices: Sequence[ColumnSlice]) -> RowRanges:
    """All rows of slices, each once, in order."""
    return merged(row_range for part in slices for row_range in part.rows or ())
