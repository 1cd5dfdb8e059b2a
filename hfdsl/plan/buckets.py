"""Buckets: the parts of a sync that arrive together, so that no rank needs room for more than two of them.

A worked example. Weights of 40, 30, 50 and 120 bytes, and at most 100 bytes that are on their way at once, so at most
50 in a bucket. The last weight alone has more, and goes in three parts, each a third of its rows::

    bucket    holds            bytes    in buffer
    0         w0               40       0
    1         w1               30       1
    2         w2               50       0
    3         w3, 1 of 3       40       1
    4         w3, 2 of 3       40       0
    5         w3, 3 of 3       40       1

While a rank writes a bucket to its place, the next one arrives. So it has two buffers, of 50 and 40 bytes. All ranks
have the same buckets: a bucket is as large as what the rank that receives most of it receives.

A part of at least ``BROADCAST_BYTES``, or ``SEND_BYTES`` where it goes to one rank, arrives where the rank needs it if
it is contiguous there, on the GPU and in the dtype of the sync; then it needs no buffer (``message_memory``). Smaller
parts share a message, since each operation has a cost of its own. A weight is cut into rows if it has enough of them,
as rows are contiguous.

``filled`` is the rule of all buckets, also of those in which ranks gather generation slices, or hand weights to an
engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from hfdsl.protocols.boxes import Box, total, volume
from hfdsl.protocols.layouts import Parameter
from hfdsl.protocols.resharding import Route

T = TypeVar("T")

BROADCAST_BYTES: Final = 2**20
SEND_BYTES: Final = 16 * 2**20
"""The least bytes of a part that travels by itself, from where one rank has it to where others need it.

Measured (``benchmarks.gpu.resharding exchange``): NCCL joins broadcasts of one group well, and sends less so.
"""


@dataclass(frozen=True, slots=True)
class BucketShare:
    """Cut each piece of a parameter into ``count`` parts, equal up to an index of a dim, and return one of them.

    >>> [BucketShare(Parameter("w", (5, 2)), index, 2).of(((0, 5), (0, 2))) for index in (0, 1)]
    [((0, 3), (0, 2)), ((3, 5), (0, 2))]
    """

    parameter: Parameter
    index: int = 0
    count: int = 1

    def of(self, box: Box) -> Box | None:
        """The part of a piece, cut along the first dim that has as many indices; None if nothing is left for it."""
        if self.count == 1 or not box:  # a number has no dims
            return None if self.index else box
        lengths = [stop - start for start, stop in box]
        dim = next((dim for dim, length in enumerate(lengths) if length >= self.count), lengths.index(max(lengths)))
        start, stop = box[dim]
        size = -(-(stop - start) // self.count)
        first = start + self.index * size
        return (*box[:dim], (first, min(first + size, stop)), *box[dim + 1 :]) if first < stop else None

    def received(self, route: Route) -> int:
        """The most bytes of it that a rank receives."""
        if self.count == 1:
            return most_received(route)
        boxes = ([self.of(piece.box) for piece in need.received] for need in route.needs)
        elements = (sum(volume(box) for box in received if box is not None) for received in boxes)
        return max(elements, default=0) * route.item_bytes


@dataclass(frozen=True, slots=True)
class Bucket:
    """Shares that arrive together, and the most bytes of them that a rank receives."""

    shares: tuple[BucketShare, ...]
    bytes: int


def filled(sized: Iterable[tuple[T, int]], most: int) -> Iterator[tuple[list[T], int]]:
    """Things with their bytes, in order, in buckets of at most ``most`` bytes each; what has more has one alone.

    >>> list(filled([("a", 2), ("b", 3), ("c", 9), ("d", 1)], 5))
    [(['a', 'b'], 5), (['c'], 9), (['d'], 1)]
    """
    bucket, size = list[T](), 0
    for item, added in sized:
        if bucket and size + added > most:
            yield bucket, size
            bucket, size = [], 0
        bucket.append(item)
        size += added
    if bucket:
        yield bucket, size


def buckets(routed: Iterable[tuple[Parameter, Route]], most: int) -> Iterator[Bucket]:
    """The parameters in order, in buckets; two buckets have at most ``most`` bytes, up to the rows of a few shares."""

    def shares() -> Iterator[tuple[BucketShare, int]]:
        for parameter, route in routed:
            count = max(1, -(-most_received(route) // max(most // 2, 1))) if most else 1
            for share in (BucketShare(parameter, index, count) for index in range(count)):
                yield share, share.received(route)

    for bucket, size in filled(shares(), most // 2):
        yield Bucket(tuple(bucket), size)


def on_their_way(sizes: Sequence[int]) -> int:
    """The most bytes of the buffers for two buckets of these sizes; each reuses those of the one before the last.

    >>> on_their_way([40, 30, 50, 40])
    90
    """
    return max(sizes[::2], default=0) + max(sizes[1::2], default=0)


def most_received(route: Route) -> int:
    """The most bytes of a parameter of a route that a rank receives."""
    return max((total(need.boxes) - need.owned_elements for need in route.needs), default=0) * route.item_bytes
