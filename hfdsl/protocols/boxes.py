"""Boxes: parts of a tensor as half-open ranges, one for each dim, and the exact algebra of them.

>>> whole, corner = ((0, 4), (0, 6)), ((0, 2), (3, 6))
>>> volume(whole), intersection(whole, ((2, 9), (3, 4)))
(24, ((2, 4), (3, 4)))
>>> difference(whole, corner)
(((2, 4), (0, 6)), ((0, 2), (0, 3)))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, pairwise, product
from math import prod
from numbers import Integral
from typing import TypeAlias, TypeGuard

Range: TypeAlias = tuple[int, int]
"""Consecutive indices of a dim: ``start`` and ``stop``, which is exclusive."""

Box: TypeAlias = tuple[Range, ...]
"""A part of a tensor: a range of each of its dims. A tensor without dims has one box, ``()``."""


def is_range(value: object) -> TypeGuard[Range]:
    """Whether this is a start and a stop, in any order.

    >>> is_range((0, 4)), is_range([0, 4]), is_range((0, 4.0))
    (True, False, False)
    """
    if not (isinstance(value, tuple) and len(value) == 2):
        return False
    start, stop = value
    return (type(start) is int or isinstance(start, Integral)) and (type(stop) is int or isinstance(stop, Integral))


def whole(shape: Sequence[int]) -> Box:
    """All of a tensor.

    >>> whole((4, 6))
    ((0, 4), (0, 6))
    """
    return tuple((0, size) for size in shape)


def volume(box: Box) -> int:
    """The number of elements."""
    return prod(stop - start for start, stop in box)


def total(boxes: Iterable[Box]) -> int:
    """The number of elements of disjoint boxes."""
    return sum(map(volume, boxes))


def extent(boxes: Iterable[Box]) -> tuple[int, ...]:
    """The shape of the smallest tensor that has these boxes.

    >>> extent([((0, 2), (0, 3)), ((2, 4), (0, 3))])
    (4, 3)
    """
    return tuple(max(stop for _, stop in ranges) for ranges in zip(*boxes, strict=True))


def fill(boxes: Collection[Box]) -> bool:
    """Whether different boxes have as many elements as the smallest tensor that contains them."""
    return total(boxes) == prod(extent(boxes))


def ranges_by_dim(boxes: Iterable[Box]) -> tuple[tuple[Range, ...], ...]:
    """For each dim the different ranges of boxes, in order."""
    return tuple(tuple(dict.fromkeys(ranges)) for ranges in zip(*boxes, strict=True))


def combination_count(boxes: Iterable[Box]) -> int:
    """How many combinations there are of the ranges of boxes, one of each dim.

    A local tensor has the ranges of each dim one after another. So disjoint boxes make one if they are as many, in any
    order; boxes that touch only at a corner would leave parts of it without values.

    >>> combination_count([((0, 2), (0, 3)), ((4, 6), (0, 3))]), combination_count([((0, 2), (0, 2)), ((2, 4), (2, 4))])
    (2, 4)
    """
    return prod(map(len, ranges_by_dim(boxes)))


def intersection(left: Box, right: Box) -> Box | None:
    """The intersection of two boxes; None if it is empty."""
    common = []
    for (start, stop), (other_start, other_stop) in zip(left, right, strict=True):
        first, last = max(start, other_start), min(stop, other_stop)
        if first >= last:
            return None
        common.append((first, last))
    return tuple(common)


def difference(box: Box, removed: Box) -> tuple[Box, ...]:
    """Subtract a box that lies in another one: the result is disjoint boxes, before and after it, dim by dim."""
    parts: list[Box] = []
    for dim, ((start, stop), (first, last)) in enumerate(zip(box, removed, strict=True)):
        inside, outside = removed[:dim], box[dim + 1 :]
        parts += [(*inside, side, *outside) for side in ((start, first), (last, stop)) if side[0] < side[1]]
    return tuple(parts)


def without(boxes: Iterable[Box], removed: Iterable[Box]) -> tuple[Box, ...]:
    """Boxes without the elements of others.

    >>> without([((0, 8),)], [((2, 3),), ((6, 9),)])
    (((0, 2),), ((3, 6),))
    """
    remaining = tuple(boxes)
    for box in removed:
        parts: list[Box] = []
        for part in remaining:
            common = intersection(part, box)
            parts += [part] if common is None else difference(part, common)
        remaining = tuple(parts)
    return remaining


def edges_by_dim(boxes: Iterable[Box]) -> tuple[tuple[int, ...], ...]:
    """For each dim where boxes start and stop, in ascending order."""
    return tuple(tuple(sorted({end for pair in ranges for end in pair})) for ranges in zip(*boxes, strict=True))


def cut_at(box: Box, edges: Iterable[Iterable[int]]) -> Iterator[Box]:
    """A box in parts, cut along ascending edges of each dim. Boxes cut along common edges have equal or disjoint parts.

    >>> list(cut_at(((0, 4), (0, 6)), [[0, 2, 8], [0, 6]]))
    [((0, 2), (0, 6)), ((2, 4), (0, 6))]
    """
    ranges = (
        tuple(pairwise([start, *(edge for edge in ends if start < edge < stop), stop]))
        for (start, stop), ends in zip(box, edges, strict=True)
    )
    return product(*ranges)


def overlap(boxes: Iterable[Box]) -> Box | None:
    """Elements that two of the boxes have in common; None if they are disjoint."""
    return next(
        (common for left, right in combinations(boxes, 2) if (common := intersection(left, right)) is not None), None
    )


def is_contiguous(box: Box, boxes: Iterable[Box]) -> bool:
    """Whether a part of one of ``boxes`` is contiguous in a row-major tensor of them, one range of a dim after another.

    >>> whole, rows, columns = ((0, 4), (0, 6)), ((1, 3), (0, 6)), ((0, 4), (0, 3))
    >>> [is_contiguous(part, [whole]) for part in (whole, rows, columns)], is_contiguous(columns, [columns])
    ([True, True, False], True)
    """
    lengths = [stop - start for start, stop in box]
    shape = [sum(stop - start for start, stop in dict.fromkeys(ranges)) for ranges in zip(*boxes, strict=True)]
    first = next((dim for dim, length in enumerate(lengths) if length > 1), len(lengths))
    return lengths[first + 1 :] == shape[first + 1 :]


def in_words(box: Box) -> str:
    """A box as one indexes a tensor with it.

    >>> in_words(((0, 2), (3, 6)))
    '[0:2, 3:6]'
    """
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]"
