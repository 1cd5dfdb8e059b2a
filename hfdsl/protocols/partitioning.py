"""Assignment of a call's rows to chunks: even bounds, padding, and chunks of about equal weight.

This module computes with row counts alone, never with values. ``protocols.transfer`` cuts values by these functions in
the imperative layer; ``plan.rows`` routes row ranges by the same ones in a plan. Five rows over two chunks, padded by
repeating the last; then four rows that weigh 9, 9, 1 and 1:

>>> uneven = RowSplit.even(5, 2, pad="repeat_last")
>>> [uneven.chunk_rows(chunk) for chunk in range(2)], uneven.output_bounds(5)
([((0, 3),), ((3, 5), (4, 5))], (0, 3, 5))
>>> balanced = RowSplit.even(4, 2).balanced((9, 9, 1, 1), units=4)
>>> [balanced.chunk_rows(chunk) for chunk in range(2)]
[((0, 1), (3, 4)), ((1, 3),)]

The chunks return rows 0, 3, 1, 2 in this order. ``stored`` and ``restored`` locate the caller's rows in it:

>>> balanced.stored(((0, 4),), 4)
((0, 1), (2, 4), (1, 2))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain
from operator import itemgetter
from typing import Literal, TypeAlias

from hfdsl.errors import SizeError
from hfdsl.protocols.ranges import NO_ROWS, RowRanges, as_ranges

Pad: TypeAlias = Literal["repeat_last", "cycle"]
"""The rows that pad an uneven split: the last row repeated, or all rows again from the first."""


def even_bounds(rows: int, chunks: int) -> tuple[int, ...]:
    """The first row of each of ``chunks`` even chunks, and the end.

    >>> even_bounds(6, 3)
    (0, 2, 4, 6)
    """
    return tuple(chunk * rows // chunks for chunk in range(chunks + 1))


def pad_size(rows: int, chunks: int, *, pad: Pad | None = None, group: int = 1, subject: str = "value") -> int:
    """Compute the pad rows with which ``rows`` split into ``chunks`` even chunks of whole groups of ``group`` rows.

    Raises ``SizeError``: HF310 when the rows do not divide and no padding is asked for, HF313 if it cuts a group.

    >>> pad_size(10, 4, pad="repeat_last")
    2
    """
    if rows % group:
        raise SizeError("HF313", f"{subject} has {rows} rows, which do not make whole groups of {group}")
    missing = -rows % (chunks * group)
    if missing and pad is None:
        down, up = rows - rows % (chunks * group), rows + missing
        nearest = f"{down} or {up}" if down else f"{up}"
        if group > 1:
            raise SizeError(
                "HF313",
                f"{subject} has {rows} rows in groups of {group}; over {chunks} chunks a group would be cut; "
                f'give {nearest} rows, or register the method with pad="repeat_last" or pad="cycle"',
            )
        raise SizeError(
            "HF310",
            f"{subject} has {rows} rows, which do not split over {chunks} chunks "
            f"({rows} % {chunks} = {rows % chunks}); "
            f'give {nearest} rows, or register the method with pad="repeat_last" or pad="cycle"',
        )
    return missing


def padded_ranges(start: int, stop: int, rows: int, pad: Pad | None) -> RowRanges:
    """Map the padded range ``start`` to ``stop`` to real rows; from ``rows`` on they are padding. Half-open.

    >>> padded_ranges(2, 6, 3, "repeat_last"), padded_ranges(2, 6, 3, "cycle")
    (((2, 3), (2, 3), (2, 3), (2, 3)), ((2, 3), (0, 3)))
    """
    if stop <= rows or pad is None or not rows:
        return ((start, stop),)
    return as_ranges([i if i < rows else rows - 1 if pad == "repeat_last" else i % rows for i in range(start, stop)])


@dataclass(frozen=True, slots=True)
class RowPartition:
    """Rows in an order in which chunks of one size weigh about the same.

    Rows are ordered in *units* of consecutive rows that belong together: whole groups, and as many of the rows of each
    value that takes part as belong to one of them. ``order`` lists the units chunk by chunk, in order within each
    chunk, so that padding, which follows the last real unit, comes last in its chunk. ``places[i]`` is where the real
    unit i lies in the output of the chunks without padding; ``weights`` are those of all units.
    """

    order: tuple[int, ...]
    places: tuple[int, ...]
    weights: tuple[int, ...]

    def chunk_rows(self, chunk: int, chunks: int, rows: int) -> RowRanges:
        """The rows that a chunk gets of a value with ``rows`` real rows; pad rows are numbered from there on."""
        size, per_unit = len(self.order) // chunks, rows // len(self.places)
        units = self.order[chunk * size : (chunk + 1) * size]
        return tuple((start * per_unit, stop * per_unit) for start, stop in as_ranges(units))

    def fits(self, units: int, chunks: int) -> bool:
        """Whether a call whose rows make ``units`` can follow this partition, into ``chunks``."""
        real = len(self.places)
        return real == len(self.order) and units % real == 0 and real % chunks == 0

    def imbalance(self, chunks: int) -> tuple[float, float]:
        """The heaviest chunk's weight over the mean of all: with the rows in their order, and as they are balanced."""
        mean = sum(self.weights) / chunks
        before, after = (max(loads(self.weights, o, chunks)) for o in (range(len(self.order)), self.order))
        return before / mean, after / mean


@dataclass(frozen=True, slots=True)
class RowSplit:
    """The split of a call's rows over chunks of one size.

    ``added`` pad rows follow the ``rows`` real ones and repeat them as ``pad`` says. Without a ``partition`` rows stay
    in their order.
    """

    rows: int = 0
    chunks: int = 1
    added: int = 0
    pad: Pad | None = None
    partition: RowPartition | None = None

    @classmethod
    def even(
        cls, rows: int, chunks: int, *, pad: Pad | None = None, group: int = 1, subject: str = "value"
    ) -> RowSplit:
        """Rows in their order; errors as for ``pad_size``."""
        return cls(rows, chunks, pad_size(rows, chunks, pad=pad, group=group, subject=subject), pad)

    def balanced(self, weights: Sequence[int], units: int) -> RowSplit:
        """Balance rows of these weights in ``units``; rows keep their order where that is no worse."""
        if not self.rows:
            return self
        return replace(self, partition=_partition(tuple(weights), units, self.chunks, self.rows, self.added, self.pad))

    @property
    def chunk_size(self) -> int:
        """The number of rows of each chunk, pad rows included."""
        return (self.rows + self.added) // self.chunks

    def positions(self, chunk: int) -> tuple[int, ...] | None:
        """The places of a balanced chunk's rows in the padded batch; None if they are in order."""
        if self.partition is None:
            return None
        ranges = self.partition.chunk_rows(chunk, self.chunks, self.rows)
        return tuple(row for start, stop in ranges for row in range(start, stop))

    def chunk_rows(self, chunk: int, rows: int | None = None) -> RowRanges:
        """The rows of a chunk; for pad rows, the rows that they repeat.

        ``rows`` is how many the argument has: one with twice the rows of the call gives twice as many to each chunk.
        """
        rows = self.rows if rows is None else rows
        if self.partition is not None and rows:
            ranges = self.partition.chunk_rows(chunk, self.chunks, rows)
            return tuple(padded for start, stop in ranges for padded in padded_ranges(start, stop, rows, self.pad))
        size = self.chunk_size
        start, stop = chunk * size, (chunk + 1) * size
        if rows != self.rows:
            start, stop = start * rows // self.rows, stop * rows // self.rows
        return padded_ranges(start, stop, rows, self.pad)

    def output_bounds(self, rows: int) -> tuple[int, ...]:
        """The first row of each chunk's output without pad rows, and the end, of ``rows`` rows in all."""
        if self.partition is None:
            edges = even_bounds(self.rows + self.added, self.chunks)
            return tuple(min(edge, self.rows) * rows // self.rows for edge in edges) if self.rows else (0,) * len(edges)
        order, real = self.partition.order, len(self.partition.places)
        size, per_unit = len(order) // self.chunks, rows // real
        by_chunk = (order[start : start + size] for start in range(0, len(order), size))
        return 0, *accumulate(per_unit * sum(unit < real for unit in units) for units in by_chunk)

    def stored(self, ranges: RowRanges, rows: int) -> RowRanges:
        """Locate rows in the concatenated outputs of the chunks, without pad rows; these have ``rows`` rows in all."""
        if self.partition is None or not rows:
            return ranges
        places = self.partition.places
        per_unit = rows // len(places)
        every = chain.from_iterable(range(start, stop) for start, stop in ranges)
        if per_unit == 1:
            return as_ranges([places[row] for row in every]) or NO_ROWS
        return as_ranges([places[row // per_unit] * per_unit + row % per_unit for row in every]) or NO_ROWS

    def restored(self, output_rows: int, subject: str = "output") -> RowRanges:
        """The caller's rows, in their order, within the chunks' output with pad rows, which has ``output_rows``.

        Raises ``SizeError`` (HF310) if the rows of the output cannot be attributed to rows of the input.

        >>> RowSplit.even(3, 2, pad="cycle").restored(8)
        ((0, 6),)
        """
        total = self.rows + self.added
        if output_rows % total:
            if self.partition is not None:
                raise SizeError(
                    "HF310",
                    f"{subject} has {output_rows} rows for {total} rows that were balanced by their weights: which "
                    "belongs to which is unknown; return a fixed number of rows per input row",
                )
            raise SizeError(
                "HF310",
                f"{subject} has {output_rows} rows for {self.rows} rows and {self.added} pad rows: which of them are "
                "padding is unknown; return a fixed number of rows per input row, or give rows that divide",
            )
        per_row = output_rows // total
        if self.partition is None:
            return ((0, self.rows * per_row),)
        order, per_unit = self.partition.order, total // len(self.partition.order) * per_row
        places = sorted(range(len(order)), key=order.__getitem__)[: len(self.partition.places)]
        return tuple((start * per_unit, stop * per_unit) for start, stop in as_ranges(places))


NO_SPLIT = RowSplit()
"""The split of a call whose arguments are not split, or have not arrived yet."""


@lru_cache(maxsize=32)  # the calls of one step often have the same weights
def _partition(
    weights: tuple[int, ...], units: int, chunks: int, rows: int, added: int, pad: Pad | None
) -> RowPartition | None:
    """The partition of rows with these weights, in ``units``; None if they stay in their order.

    Each of the ``added`` pad rows weighs what the row that it repeats weighs; weights below 0 count as none.
    """
    if added * units % rows or (units + added * units // rows) % chunks:
        return None  # the units are too large for these chunks
    padding = padded_ranges(rows, rows + added, rows, pad) if added else ()
    every = [*weights, *(weights[row] for start, stop in padding for row in range(start, stop))]
    per_unit = len(weights) // units
    by_unit = tuple(
        sum(max(0, weight) for weight in every[start : start + per_unit]) for start in range(0, len(every), per_unit)
    )
    order = partition_evenly(by_unit, chunks)
    if order == tuple(range(len(order))):
        return None
    places = [0] * units
    for place, unit in enumerate(unit for unit in order if unit < units):
        places[unit] = place
    return RowPartition(order, tuple(places), by_unit)


_Bin: TypeAlias = tuple[int, list[int]]
"""A chunk under construction: its weight, and the numbers in it."""


def loads(weights: Sequence[int], order: Sequence[int], chunks: int) -> tuple[int, ...]:
    """The weight of each chunk.

    >>> loads([5, 1, 1, 5], [0, 1, 2, 3], 2)
    (6, 6)
    """
    size = len(order) // chunks
    return tuple(sum(weights[i] for i in order[chunk * size : (chunk + 1) * size]) for chunk in range(chunks))


def partition_evenly(weights: Sequence[int], chunks: int) -> tuple[int, ...]:
    """The numbers from 0 chunk by chunk, in chunks of one size and about one weight; in order within each chunk.

    This is Karmarkar and Karp's differencing for chunks of one size. Sorted by weight, ``chunks`` numbers at a time
    make a partial partition, one number in each bin. The two partial partitions whose bins differ most are merged, the
    heaviest bin of one with the lightest of the other and so on, until one is left. Merged bins differ by no more than
    either's did: in the end they differ by no more than the lightest and the heaviest of some ``chunks`` weights that
    follow each other in order. If no weight is negative, no chunk weighs more than ``2 - 1 / chunks`` times the
    heaviest chunk of the best partition. Numbers stay in their order where that is no worse.

    ``chunks`` divides the number of weights.

    >>> partition_evenly([9, 9, 1, 1], 2), partition_evenly([1, 1, 1, 1], 2)
    ((0, 3, 1, 2), (0, 1, 2, 3))
    """
    unchanged = tuple(range(len(weights)))
    ranked = sorted(unchanged, key=weights.__getitem__)
    rows = (ranked[start : start + chunks] for start in range(0, len(ranked), chunks))
    heap = [_entry(number, [(weights[i], [i]) for i in row]) for number, row in enumerate(rows)]
    heapify(heap)
    while len(heap) > 1:
        (_, number, left), (_, _, right) = heappop(heap), heappop(heap)
        heappush(heap, _entry(number, [_combined(*pair) for pair in zip(left, reversed(right), strict=True)]))
    bins = sorted(sorted(numbers) for _, _, last in heap for _, numbers in last)
    order = tuple(number for numbers in bins for number in numbers)
    better = max(loads(weights, order, chunks)) < max(loads(weights, unchanged, chunks))
    return order if better else unchanged


def _entry(number: int, bins: list[_Bin]) -> tuple[int, int, list[_Bin]]:
    """A partial partition as it lies in the heap: the one whose bins differ most comes first; numbers break ties."""
    bins.sort(key=itemgetter(0))
    return bins[0][0] - bins[-1][0], number, bins


def _combined(left: _Bin, right: _Bin) -> _Bin:
    """Merge two partial partitions; the smaller one's entries move, so that each moves at most log n times."""
    few, many = sorted((left[1], right[1]), key=len)
    many.extend(few)
    return left[0] + right[0], many
