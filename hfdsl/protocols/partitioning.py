"""Dealing: rows of unlike weights into chunks of one size, so that every chunk weighs about the same."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter

_Bin = tuple[int, list[int]]
"""A chunk in the making: its weight, and what is in it."""


def loads(weights: Sequence[int], order: Sequence[int], chunks: int) -> tuple[int, ...]:
    """The weight of each chunk.

    >>> loads([5, 1, 1, 5], [0, 1, 2, 3], 2)
    (6, 6)
    """
    size = len(order) // chunks
    return tuple(sum(weights[i] for i in order[chunk * size : (chunk + 1) * size]) for chunk in range(chunks))


def partition_evenly(weights: Sequence[int], chunks: int) -> tuple[int, ...]:
    """The numbers from 0 in the order in which equal chunks of them are given, each chunk's own in order.

    This is Karmarkar and Karp's differencing for chunks of one size. Sorted by weight, ``chunks`` numbers at a time
    make a partial partition, one number in each bin. The two partial partitions whose bins differ most are merged, the
    heaviest bin of one with the lightest of the other and so on, until one is left. Merged bins differ no more than
    they did before: in the end no bin is heavier than another by more than two of some ``chunks`` consecutive weights
    differ. If no weight is negative, no chunk weighs more than ``2 - 1 / chunks`` times the heaviest chunk of the best
    partition. Numbers stay in their order where that is no worse.

    ``chunks`` divides the number of weights.

    >>> partition_evenly([9, 9, 1, 1], 2), partition_evenly([1, 1, 1, 1], 2)
    ((0, 3, 1, 2), (0, 1, 2, 3))
    """
    as_it_is = tuple(range(len(weights)))
    ranked = sorted(as_it_is, key=weights.__getitem__)
    rows = (ranked[first : first + chunks] for first in range(0, len(ranked), chunks))
    heap = [_entry(number, [(weights[i], [i]) for i in row]) for number, row in enumerate(rows)]
    heapify(heap)
    while len(heap) > 1:
        (_, number, one), (_, _, other) = heappop(heap), heappop(heap)
        heappush(heap, _entry(number, [_joined(*pair) for pair in zip(one, reversed(other), strict=True)]))
    bins = sorted(sorted(numbers) for _, _, made in heap for _, numbers in made)
    order = tuple(number for numbers in bins for number in numbers)
    better = max(loads(weights, order, chunks)) < max(loads(weights, as_it_is, chunks))
    return order if better else as_it_is


def _entry(number: int, bins: list[_Bin]) -> tuple[int, int, list[_Bin]]:
    """A partial partition as it lies in the heap: those whose bins differ most come first, and no two are alike."""
    bins.sort(key=itemgetter(0))
    return bins[0][0] - bins[-1][0], number, bins


def _joined(one: _Bin, other: _Bin) -> _Bin:
    """Both; the numbers of the smaller go over, so that each goes over no more than log n times."""
    few, many = sorted((one[1], other[1]), key=len)
    many.extend(few)
    return one[0] + other[0], many
