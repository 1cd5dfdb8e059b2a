"""The store of a process: what it made in this step and reads again, and what it was brought."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hfdsl.errors import WiringError
from hfdsl.graph.columns import WEIGHT
from hfdsl.graph.guards import versions
from hfdsl.plan.payloads import ColumnSlice, Payload
from hfdsl.plan.reading import Piece
from hfdsl.protocols.ranges import RowRange, RowRanges
from hfdsl.types.joining import picked_rows, rows_after_rows
from hfdsl.types.ragged import Jagged
from hfdsl.types.weights import row_weights

if TYPE_CHECKING:
    import torch

Content: TypeAlias = Mapping[ColumnSlice, Any]
"""What a payload holds: raw rows of columns."""

SMALL = 64 * 1024
"""Bytes of a payload of the driver's up to which the object store would cost more than sending it with every call."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that stays in the process that made it, with the versions that its tensors had then."""

    maker: str
    columns: Piece
    versions: Mapping[str, int]

    @classmethod
    def of(cls, maker: str, columns: Piece) -> Kept:
        """Keep a value as it is now."""
        return cls(maker, columns, versions(columns))

    def read(self, column: str) -> Any:
        """A column, or what its rows weigh.

        Raises:
            WiringError: HF703 where its maker has changed it since: a reader elsewhere has the old value.
        """
        if column.startswith(WEIGHT) and column not in self.columns:
            return row_weights(self.read(column.removeprefix(WEIGHT)))
        value = self.columns[column]
        if column in self.versions and value._version != self.versions[column]:
            raise _changed(self.maker, column)
        return value


class Loan:
    """A column that readers elsewhere share, or will have copied at a time that nobody knows."""

    def __init__(self, kept: Kept, column: str) -> None:
        self._maker, self._column, value = kept.maker, column, kept.columns[column]
        # A tensor that counts the writes of all who share the memory, and does not hold it.
        self._probe = (value.values if isinstance(value, Jagged) else value).detach()
        self._probe.data = self._probe.new_empty(0)
        self._version = self._probe._version

    def check(self) -> None:
        """Refuse that the maker has written into it since.

        Raises:
            WiringError: HF703 naming the maker and the column.
        """
        if self._probe._version != self._version:
            raise _changed(self._maker, self._column)


def _changed(maker: str, column: str) -> WiringError:
    what = f"column '{column}' of its result" if column else "its result"
    return WiringError("HF703", f"{what} was changed after '{maker}' had returned it; return a .clone()")


class Store:
    """Values by graph node, for as long as one step lasts.

    ``held`` are the bytes that it holds, ``most`` the most that it has held in the step.
    """

    def __init__(self) -> None:
        self._own: dict[int, tuple[int, Kept]] = {}
        self._brought: dict[int, dict[tuple[int, str], list[tuple[RowRanges | None, Any]]]] = {}
        self._bytes: dict[int, int] = {}
        self._loans: list[Loan] = []
        self.most = 0

    def clear(self) -> None:
        """A step owns its values: nothing of another step is ever read."""
        self._own.clear()
        self._brought.clear()
        self._bytes.clear()
        self._loans.clear()
        self.most = 0

    @property
    def held(self) -> int:
        """Bytes of all values."""
        return sum(self._bytes.values())

    def keep(self, node: int, chunk: int, value: Kept) -> None:
        """Keep a chunk that this process made."""
        self._own[node] = chunk, value
        self._count(node, sum(map(size_of, value.columns.values())))

    def bring(self, content: Content) -> None:
        """Take in a payload."""
        for cut, rows in content.items():
            self._brought.setdefault(cut.node, {}).setdefault((cut.chunk, cut.column), []).append((cut.rows, rows))
            self._count(cut.node, size_of(rows))

    def drop(self, node: int) -> None:
        """Forget a value."""
        self._own.pop(node, None)
        self._brought.pop(node, None)
        self._bytes.pop(node, None)

    def read(self, node: int, column: str, chunk: int, rows: RowRanges | None) -> Any:
        """Rows of a chunk's column, in order; with None the whole of what has no rows."""
        own = self._own.get(node)
        if own is not None and own[0] == chunk:
            return _cut(own[1].read(column), rows)
        parts = self._brought[node][chunk, column]
        if rows is None or parts[0][1] is None:
            return parts[0][1]
        return _rows(parts, rows)

    def give(self, payload: Payload) -> Content:
        """A payload of what is kept here."""
        return slice_payload(payload, {cut.node: self._own[cut.node][1] for cut in payload.slices})

    def lend(self, payload: Payload, values: Mapping[int, Kept]) -> None:
        """Readers elsewhere are given a payload as it lies here."""
        for node, column in dict.fromkeys((cut.node, cut.column) for cut in payload.slices):
            if column in values[node].versions:
                self._loans.append(Loan(values[node], column))

    def check_loans(self) -> None:
        """Refuse that what was lent in this step has been changed.

        Raises:
            WiringError: HF703 naming the maker and the column.
        """
        for loan in self._loans:
            loan.check()

    def _count(self, node: int, more: int) -> None:
        self._bytes[node] = self._bytes.get(node, 0) + more
        self.most = max(self.most, self.held)


def slice_payload(payload: Payload, values: Mapping[int, Kept]) -> Content:
    """A payload of values: views wherever its rows lie together."""
    return {cut: _cut(values[cut.node].read(cut.column), cut.rows) for cut in payload.slices}


def _cut(value: Any, ranges: RowRanges | None) -> Any:
    return value if ranges is None else cut_rows(value, ranges)


FEW = 8
"""Runs of rows up to which it is cheaper to put views of them together than to pick row by row."""


def cut_rows(value: Any, ranges: RowRanges) -> Any:
    """Rows of a column, in order; of one that is absent None."""
    if value is None or ranges == ((0, len(value)),):
        return value
    if len(ranges) > FEW:
        return picked_rows(value, [row for first, last in ranges for row in range(first, last)])
    return rows_after_rows([value[first:last] for first, last in ranges])


def memory_of(lent: Iterable[Content]) -> set[int]:
    """Where the memory of these payloads is."""
    return {part.untyped_storage().data_ptr() for c in lent for value in c.values() for part in _tensors(value)}


def apart(columns: Mapping[str, Any], lent: Container[int]) -> dict[str, Any]:
    """Raw columns that may be kept and written: what lies in lent memory, which others read, is copied."""

    def own(value: Any) -> Any:
        if isinstance(value, Jagged):
            return Jagged(own(value.values), own(value.offsets))
        if hasattr(value, "untyped_storage"):
            return value.clone() if value.untyped_storage().data_ptr() in lent else value
        return list(value) if type(value) is list else value

    return {name: own(value) for name, value in columns.items()}


def _tensors(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Jagged):
        return value.values, value.offsets
    return (value,) if hasattr(value, "untyped_storage") else ()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory: libraries know only some dtypes.

    Of a single value any stride counts as contiguous, while bytes are counted one by one.
    """
    import torch

    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def bytes_of(content: Mapping[Any, Any]) -> int:
    """Bytes of a payload, or of a record's columns."""
    return sum(map(size_of, content.values()))


def size_of(value: Any) -> int:
    """Bytes of a raw column; of Python objects nobody knows them."""
    return getattr(value, "nbytes", 0)


def _rows(parts: list[tuple[RowRanges | None, Any]], rows: RowRanges) -> Any:
    """Some rows, in order, out of parts that each hold rows of the same chunk."""
    if parts[0][0] == rows:
        return parts[0][1]
    if len(parts) == 1 and len(whole := parts[0][0] or ()) == 1:
        begin = whole[0][0]
        return cut_rows(parts[0][1], tuple((first - begin, last - begin) for first, last in rows))
    here: dict[RowRange, tuple[int, Any]] = {}
    for ranges, value in parts:
        at = 0
        for first, last in ranges or ():
            here[first, last] = at - first, value
            at += last - first
    held = sorted(span for span in here if span[0] < span[1])
    ends, found = [last for _, last in held], list[Any]()
    for first, last in rows:
        for span in held[bisect_right(ends, first) :]:
            if span[0] >= last:
                break
            shift, value = here[span]
            found.append(cut_rows(value, ((max(first, span[0]) + shift, min(last, span[1]) + shift),)))
    return rows_after_rows(found) if found else parts[0][1][0:0]
