"""Row ranges: rows of a value as runs of consecutive ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

RowRange: TypeAlias = tuple[int, int]
"""Consecutive rows: ``start`` and ``stop``, which is exclusive."""

RowRanges: TypeAlias = tuple[RowRange, ...]
"""Rows one after another, in any order; ``merged`` sorts them."""

NO_ROWS: RowRanges = ((0, 0),)
"""One empty range rather than (): a reader without rows still sees a column's dtype and shape."""


def as_ranges(rows: Sequence[int]) -> RowRanges:
    """Rows as runs of consecutive ones, in the order given.

    >>> as_ranges([3, 4, 5, 0, 1])
    ((3, 6), (0, 2))
    """
    if not rows:
        return ()
    ends = [i for i, (row, following) in enumerate(pairwise(rows), 1) if following != row + 1]
    return tuple((rows[i], rows[j - 1] + 1) for i, j in pairwise([0, *ends, len(rows)]))


def merged(ranges: Iterable[RowRange]) -> RowRanges:
    """The rows of all ranges, each once, in order; one empty range if all are empty.

    >>> merged([(4, 6), (0, 2), (1, 4)]), merged([(0, 1), (3, 4), (0, 0), (3, 4)]), merged([(0, 0), (0, 0)])
    (((0, 6),), ((0, 1), (3, 4)), ((0, 0),))
    """
    disjoint: list[RowRange] = []
    ordered = sorted(ranges)
    for row_range in ordered:
        if disjoint and row_range[0] <= disjoint[-1][1]:
            disjoint[-1] = disjoint[-1][0], max(disjoint[-1][1], row_range[1])
        elif row_range[0] < row_range[1]:
            disjoint.append(row_range)
    return tuple(disjoint) or tuple(ordered[:1])


def positions(ranges: RowRanges, among: RowRanges) -> list[int] | None:
    """Locate rows among the rows of ``merged(ranges)``; None if they are exactly these.

    >>> positions(((3, 4), (0, 2), (3, 4)), ((0, 2), (3, 4))), positions(((0, 2), (2, 4)), ((0, 4),))
    ([2, 0, 1, 2], None)
    """
    if all(left[1] <= right[0] for left, right in pairwise(ranges)):
        return None
    starts, before = [start for start, _ in among], [0, *accumulate(stop - start for start, stop in among)]
    places: list[int] = []
    for start, stop in ranges:
        i = bisect_right(starts, start) - 1
        places += range(before[i] + start - starts[i], before[i] + stop - starts[i])
    return places
