"""Extents: the part of a tensor that a rank holds, as ranges of each dim, in the order of its local tensor.

>>> boxes_of((((0, 2), (4, 6)), ((0, 3),)))
(((0, 2), (0, 3)), ((4, 6), (0, 3)))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

from hfdsl.protocols.boxes import Box, Range, is_range, without

Extent: TypeAlias = tuple[tuple[Range, ...], ...]
"""The part of a tensor that a rank holds: for each dim its ranges in the order of the local tensor; their product."""


def boxes_of(part: Extent | None) -> tuple[Box, ...]:
    """The boxes of a part that have elements.

    >>> boxes_of((((0, 2), (4, 6)), ((0, 3),))), boxes_of(()), boxes_of(None)
    ((((0, 2), (0, 3)), ((4, 6), (0, 3))), ((),), ())
    """
    boxes = () if part is None else product(*part)
    return tuple(box for box in boxes if all(start < stop for start, stop in box))


def extent_problem(part: Extent, remaining: object) -> str | None:
    """Why something is no part of another part; None if it is one."""
    if remaining is None:
        return None
    if not isinstance(remaining, tuple) or not all(
        isinstance(ranges, tuple) and all(map(is_range, ranges)) for ranges in remaining
    ):
        return "which is no tuple with a tuple of ranges (start, stop) per dim"
    if len(remaining) != len(part):
        return f"which has {len(remaining)} dim{'s' * (len(remaining) != 1)} instead of {len(part)}"
    for dim, (ranges, whole_ranges) in enumerate(zip(remaining, part, strict=True)):
        for start, stop in ranges:
            if stop < start:
                return f"whose range {start}:{stop} of dim {dim} ends before it starts"
            if start < stop and without([((start, stop),)], [(each,) for each in whole_ranges]):
                return f"whose range {start}:{stop} of dim {dim} is not within the part that it cuts"
    return None


def clipped(ranges: Sequence[Range], start: int, stop: int) -> Iterator[Range]:
    """The elements ``start`` to ``stop`` of consecutive ranges.

    >>> list(clipped([(0, 2), (8, 12)], 1, 4))
    [(1, 2), (8, 10)]
    """
    for first, last in ranges:
        size = last - first
        if max(start, 0) < min(stop, size):
            yield first + max(start, 0), first + min(stop, size)
        start, stop = start - size, stop - size


def joined(ranges: Iterator[Range]) -> tuple[Range, ...]:
    """Ranges with neighbors joined."""
    parts: list[Range] = []
    for start, stop in ranges:
        if parts and parts[-1][1] == start:
            parts[-1] = parts[-1][0], stop
        else:
            parts.append((start, stop))
    return tuple(parts)
