"""The store of a process: the values that it produced in this step and reads again, and those that it received.

A worked example. A column has four rows; rank 0 produced rows 0 and 1, rank 1 rows 2 and 3. A reader wants the rows 1
and 2, one of each chunk, so it receives two payloads. Rows of a payload are numbered within its chunk: row 2 of the
column is row 0 of chunk 1.

>>> import torch
>>> producers = Store(), Store()
>>> for rank, rows in enumerate(([10, 11], [12, 13])):
...     producers[rank].put(7, rank, StoredValue.of("actor.generate", {"ids": torch.tensor(rows)}))
>>> sent = [ColumnSlice(7, 0, "ids", ((1, 2),)), ColumnSlice(7, 1, "ids", ((0, 1),))]
>>> payloads = [producer.extract(Payload((3, rank, 0), (sent[rank],))) for rank, producer in enumerate(producers)]
>>> reader = Store()
>>> for payload in payloads:
...     reader.receive(payload)
>>> [reader.read(7, "ids", chunk, rows) for chunk, rows in ((0, ((1, 2),)), (1, ((0, 1),)))]
[tensor([11]), tensor([12])]
>>> reader.bytes, producers[0].bytes  # two of eight bytes each: the reader has one row of either chunk
(16, 16)

After the last step that reads node 7 according to the plan, ``drop`` forgets it. A later read would be an
``UndeliveredError``, but no plan has one: the last reader follows from the same reads that address the payloads.

>>> reader.drop(7)
>>> reader.bytes, reader.peak_bytes
(0, 16)

A value is passed by reference within a process, and as a view of its rows into a payload. So nothing may write into it:
a mark of each tensor is kept (``Mark``), and compared whenever the value is read (HF703).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hfdsl.errors import WiringError
from hfdsl.graph.columns import ROW_WEIGHT
from hfdsl.graph.tensor_writes import Mark
from hfdsl.plan.payloads import ColumnSlice, Payload
from hfdsl.plan.reading import Piece
from hfdsl.protocols.ranges import RowRange, RowRanges
from hfdsl.types.joining import picked_rows, rows_after_rows
from hfdsl.types.ragged import Jagged
from hfdsl.types.weights import row_weights

if TYPE_CHECKING:
    import torch

PayloadContent: TypeAlias = Mapping[ColumnSlice, Any]
"""The contents of a payload: raw rows of columns."""


class CopiedTensors(dict[str, "dict[Any, torch.Tensor]"]):
    """Tensors that were copied for one payload, so that nothing else writes or keeps them."""


OF_CALLER = "the driver"
"""The producer of the caller's batches."""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value in the process that produced it, with marks of its tensors at that time."""

    producer: str
    columns: Piece
    marks: Mapping[str, Mark]

    @classmethod
    def of(cls, producer: str, columns: Piece) -> StoredValue:
        """The current value, with its marks."""
        return cls(producer, columns, {name: Mark.of(column) for name, column in columns.items()})

    def read(self, column: str) -> Any:
        """A column, or the weights of its rows.

        Raises:
            WiringError: HF703 if its producer has written into it since then: readers elsewhere have the old value.
        """
        if column.startswith(ROW_WEIGHT) and column not in self.columns:
            return row_weights(self.read(column.removeprefix(ROW_WEIGHT)))
        value = self.columns[column]
        if self.marks[column].differs(value):
            raise _changed(self.producer, column)
        return value


class WatchedColumn:
    """A column that other processes map, or copy at a time unknown to this process."""

    def __init__(self, value: StoredValue, column: str) -> None:
        self._producer, self._column, rows = value.producer, column, value.columns[column]
        # A tensor that shares the version counter, and does not keep the memory alive.
        self._probe = (rows.values if isinstance(rows, Jagged) else rows).detach()
        self._probe.data = self._probe.new_empty(0)
        self._version = self._probe._version

    def check(self) -> None:
        """Refuse a write into the column.

        Raises:
            WiringError: HF703 naming the producer and the column.
        """
        if self._probe._version != self._version:
            raise _changed(self._producer, self._column)


def _changed(producer: str, column: str) -> WiringError:
    if producer == OF_CALLER:
        text = f"column '{column}' of a batch was changed after the run had taken it"
        return WiringError("HF703", f"{text}; give every step tensors of its own, or a .clone()")
    subject = f"column '{column}' of its result" if column else "its result"
    return WiringError("HF703", f"{subject} was changed after '{producer}' had returned it; return a .clone()")


DELIVERIES: Final = (
    "the backend has not delivered it. A backend of your own passes Submission.payloads and Submission.queued to "
    "Executor.run, and a run that loads a checkpoint gets what save_queues wrote; hfdsl.testing.run_suite shows what "
    "the backend lacks"
)
"""The end of an error about an ``UndeliveredError``."""


class UndeliveredError(LookupError):
    """A read of a value that this process neither produced nor received."""

    def __init__(self, node: int, column: str) -> None:
        super().__init__(node, column)
        self.node, self.column = node, column


class Store:
    """Values by graph node, for one step.

    ``bytes`` is what it holds, ``peak_bytes`` the most that it has held in the step.
    """

    def __init__(self) -> None:
        self._local: dict[int, tuple[int, StoredValue]] = {}
        self._received: dict[int, dict[tuple[int, str], list[tuple[RowRanges | None, Any]]]] = {}
        self._bytes: dict[int, int] = {}
        self._watched: list[WatchedColumn] = []
        self.peak_bytes = 0

    def clear(self) -> None:
        """Drop everything: a step never reads a value of another one."""
        self._local.clear()
        self._received.clear()
        self._bytes.clear()
        self._watched.clear()
        self.peak_bytes = 0

    @property
    def bytes(self) -> int:
        """The bytes of all values."""
        return sum(self._bytes.values())

    def put(self, node: int, chunk: int, value: StoredValue) -> None:
        """Keep a chunk that this process produced, until ``drop`` or the end of the step."""
        self._local[node] = chunk, value
        self._count(node, sum(map(size_of, value.columns.values())))

    def receive(self, content: PayloadContent) -> None:
        """Keep the contents of a payload."""
        for key, rows in content.items():
            self._received.setdefault(key.node, {}).setdefault((key.chunk, key.column), []).append((key.rows, rows))
            self._count(key.node, size_of(rows))

    def own_values(self) -> Iterator[tuple[int, int, StoredValue]]:
        """The values that this process produced: node, chunk and value."""
        yield from ((node, chunk, value) for node, (chunk, value) in self._local.items())

    def received_values(self) -> Iterator[tuple[int, int, str, RowRanges | None, Any]]:
        """The values that this process received: node, chunk, column, rows and contents."""
        for node, parts in self._received.items():
            for (chunk, column), pieces in parts.items():
                yield from ((node, chunk, column, rows, value) for rows, value in pieces)

    def drop(self, node: int) -> None:
        """Drop a value."""
        self._local.pop(node, None)
        self._received.pop(node, None)
        self._bytes.pop(node, None)

    def read(self, node: int, column: str, chunk: int, rows: RowRanges | None) -> Any:
        """Rows of a chunk's column, in order; with None the whole of a value without rows.

        Raises:
            UndeliveredError: if this process does not have it.
        """
        local = self._local.get(node)
        if local is not None and local[0] == chunk:
            return _slice(local[1].read(column), rows)
        parts = self._received.get(node, {}).get((chunk, column))
        if parts is None:
            raise UndeliveredError(node, column)
        if rows is None or parts[0][1] is None:
            return parts[0][1]
        return _join_rows(parts, rows)

    def extract(self, payload: Payload) -> PayloadContent:
        """The contents of a payload, from values that this process produced."""
        return slice_payload(payload, {key.node: self._local[key.node][1] for key in payload.slices})

    def watch(self, payload: Payload, values: Mapping[int, StoredValue]) -> None:
        """Watch the columns of a payload whose readers elsewhere map or copy them from this process's memory."""
        for node, column in dict.fromkeys((key.node, key.column) for key in payload.slices):
            if values[node].marks[column].count is not None:
                self._watched.append(WatchedColumn(values[node], column))

    def check_watched(self) -> None:
        """Refuse a write into memory shared in this step.

        Raises:
            WiringError: HF703 naming the producer and the column.
        """
        for column in self._watched:
            column.check()

    def _count(self, node: int, more: int) -> None:
        self._bytes[node] = self._bytes.get(node, 0) + more
        self.peak_bytes = max(self.peak_bytes, self.bytes)


def slice_payload(payload: Payload, values: Mapping[int, StoredValue]) -> PayloadContent:
    """The contents of a payload, as views where its rows are contiguous."""
    return {key: _slice(values[key.node].read(key.column), key.rows) for key in payload.slices}


def _slice(value: Any, ranges: RowRanges | None) -> Any:
    return value if ranges is None else slice_rows(value, ranges)


MAX_JOINED_VIEWS = 8
"""The number of row ranges up to which concatenating views is cheaper than gathering rows."""


def slice_rows(value: Any, ranges: RowRanges) -> Any:
    """Rows of a column, in order; None for an absent column."""
    if value is None or ranges == ((0, len(value)),):
        return value
    if len(ranges) > MAX_JOINED_VIEWS:
        return picked_rows(value, [row for start, stop in ranges for row in range(start, stop)])
    return rows_after_rows([value[start:stop] for start, stop in ranges])


def memory_of(contents: Iterable[PayloadContent]) -> set[int]:
    """The memory areas of these payloads."""
    values = (value for content in contents for value in content.values())
    return {tensor.untyped_storage().data_ptr() for value in values for tensor in _tensors(value)}


def writable(columns: Mapping[str, Any], shared: Container[int]) -> dict[str, Any]:
    """Raw columns that the caller may keep and write: columns in ``shared`` memory are copied."""

    def copied(value: Any) -> Any:
        if isinstance(value, Jagged):
            return Jagged(copied(value.values), copied(value.offsets))
        if hasattr(value, "untyped_storage"):
            return value.clone() if value.untyped_storage().data_ptr() in shared else value
        return list(value) if type(value) is list else value

    return {name: copied(value) for name, value in columns.items()}


def _tensors(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Jagged):
        return value.values, value.offsets
    return (value,) if hasattr(value, "untyped_storage") else ()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as bytes, for libraries that know only some dtypes.

    A tensor of a single value counts as contiguous whatever its stride, which bytes must not inherit.
    """
    import torch

    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def bytes_of(content: Mapping[Any, Any]) -> int:
    """The bytes of a payload, or of a record's columns."""
    return sum(map(size_of, content.values()))


def size_of(value: Any) -> int:
    """The bytes of a raw column, or of the tensors of a state; 0 for Python objects, whose size is unknown."""
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return getattr(value, "nbytes", 0)


def _join_rows(parts: list[tuple[RowRanges | None, Any]], rows: RowRanges) -> Any:
    """Join rows, in order, from parts that each hold rows of the same chunk."""
    if parts[0][0] == rows:
        return parts[0][1]
    if len(parts) == 1 and len(ranges := parts[0][0] or ()) == 1:
        offset = ranges[0][0]
        return slice_rows(parts[0][1], tuple((start - offset, stop - offset) for start, stop in rows))
    # Several parts: for each range of rows, the part that holds it, and what to add to a row for its position there.
    holders: dict[RowRange, tuple[int, Any]] = {}
    for held_rows, value in parts:
        position = 0
        for start, stop in held_rows or ():
            holders[start, stop] = position - start, value
            position += stop - start
    held = sorted((start, stop) for start, stop in holders if start < stop)
    stops, pieces = [stop for _, stop in held], list[Any]()
    for start, stop in rows:
        for held_start, held_stop in held[bisect_right(stops, start) :]:
            if held_start >= stop:
                break
            shift, value = holders[held_start, held_stop]
            pieces.append(slice_rows(value, ((max(start, held_start) + shift, min(stop, held_stop) + shift),)))
    return rows_after_rows(pieces) if pieces else parts[0][1][0:0]
