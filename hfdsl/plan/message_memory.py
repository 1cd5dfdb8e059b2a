"""The memory of an exchange: the buffers of parts that do not leave, or arrive, where a rank has them.

A worked example. An engine receives a weight ``w`` of 8 rows and 2 columns and a bias ``b`` in bfloat16, in two
buckets, and parts of at least 16 bytes travel by themselves::

    bucket    part              bytes    contiguous    in the buffer
    0         w, rows 0 to 4    16       yes           0
    0         b                 4        yes           16, aligned
    1         w, rows 4 to 8    16       yes           0

So the engine allocates 16 bytes beside its weights. If it kept ``w`` transposed, neither part of it would be
contiguous, and its buffers would take 32 bytes for bucket 0 and 16 for bucket 1.

Why it is enough. A rank lays out its messages by what it holds (``runtime.weights.messages``): a part needs no buffer
if it is large, contiguous, in the dtype of the sync, and on the device of the exchange. ``Parameter.contiguous`` states
all but the first, as far as a box of a contiguous tensor is contiguous; every other part counts. Each side has memory
for two of its turns, one after the other. A turn of a reader is a bucket, as is one of a sender that broadcasts or is
alone with one reader. Other senders have a turn for each reader of each bucket of which they have a part, which is no
more than what that reader gets: two such turns may both be of the largest size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal

from hfdsl.plan.buckets import BucketShare, on_their_way
from hfdsl.plan.resharding import Schedule
from hfdsl.protocols.boxes import Box, is_contiguous, volume
from hfdsl.protocols.resharding import Need, Route

ALIGNMENT: Final = 16
"""The bytes of which every part of a message begins at a multiple, so that it can be viewed in its dtype."""


def aligned(size: int) -> int:
    """The bytes of a part in a message.

    >>> [aligned(size) for size in (0, 1, 16, 17)]
    [0, 16, 16, 32]
    """
    return -(-size // ALIGNMENT) * ALIGNMENT


def buffer_bytes(
    schedule: Schedule, side: Literal["exports", "loads"], contiguous: Collection[str], *, broadcast: bool = False
) -> int:
    """The most bytes of buffers that a rank of a side allocates; its ``contiguous`` parameters need none where large.

    >>> from hfdsl.plan.resharding import compile_schedule
    >>> from hfdsl.protocols.layouts import Parameter, Replicas
    >>> from hfdsl.protocols.mesh import Mesh
    >>> weights = [Parameter("w", (2**20, 2)), Parameter("b", (2,))]
    >>> schedule = compile_schedule(weights, Replicas(), Mesh(), Replicas(), Mesh(), bucket_bytes=2**22)
    >>> [buffer_bytes(schedule, "loads", contiguous) for contiguous in (["w", "b"], [])]
    [16, 4194304]
    """
    alone = schedule.source_mesh.world_size == schedule.target_mesh.world_size == 1
    in_turns = side == "exports" and not (broadcast or alone)
    return max(
        2 * max(sizes, default=0) if in_turns else on_their_way(sizes)
        for sizes in _bucket_sizes(schedule, side, contiguous)
    )


def largest_bucket(schedule: Schedule) -> int:
    """The most bytes of a bucket in a buffer with all of its parts, of the rank that gets most of it.

    >>> from hfdsl.plan.resharding import compile_schedule
    >>> from hfdsl.protocols.layouts import Parameter, Replicas
    >>> from hfdsl.protocols.mesh import Mesh
    >>> largest_bucket(compile_schedule([Parameter("w", (20, 2))], Replicas(), Mesh(), Replicas(), Mesh()))
    80
    """
    return max((size for sizes in _bucket_sizes(schedule, "loads", ()) for size in sizes), default=0)


def _bucket_sizes(
    schedule: Schedule, side: Literal["exports", "loads"], contiguous: Collection[str]
) -> Iterator[list[int]]:
    """The bytes of each bucket in buffers, for ranks that load other sizes than each other."""
    counted = dict[tuple[int, bool, int, int], tuple[int, ...]]()

    def size_of(share: BucketShare, need: int | None) -> int:
        route, stays = schedule.route_of(share.parameter), share.parameter.name in contiguous
        key = id(route), stays, share.index, share.count  # parameters of a route lie alike
        if key not in counted:
            counted[key] = _buffered(route, share, side, schedule.direct_bytes if stays else None)
        return 0 if need is None else counted[key][need]

    for needs in _readers(schedule):
        yield [
            sum(size_of(share, needs[id(schedule.route_of(share.parameter))]) for share in bucket.shares)
            for bucket in schedule.buckets
        ]


def _readers(schedule: Schedule) -> Iterator[Mapping[int, int | None]]:
    """For ranks that load other sizes than each other, the number of a need in each route, or None.

    With experts or stages a rank gets some parameters of a bucket. Where all ranks get as much of each parameter, there
    is one entry for all of them.
    """
    need_of = [dict[int, int | None]() for _ in range(schedule.target_mesh.world_size)]
    for route in schedule.routes:
        first = dict[object, int]()
        numbers = {
            rank: first.setdefault(_sizes(need), number)
            for number, need in enumerate(route.needs)
            for rank in need.ranks
        }
        for rank, needs in enumerate(need_of):
            needs[id(route)] = numbers.get(rank)
    yield from {tuple(needs.values()): needs for needs in need_of}.values()


def _sizes(need: Need) -> object:
    """The sizes of a need that decide how much of it is in buffers: of its pieces, and of the parts they come from."""
    pieces = tuple((_shape(piece.box), tuple(map(_shape, piece.holding.boxes))) for piece in need.received)
    return pieces, tuple(map(_shape, need.boxes))


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _buffered(
    route: Route, share: BucketShare, side: Literal["exports", "loads"], direct_bytes: int | None
) -> tuple[int, ...]:
    """For each need the bytes of a share that are in a buffer; all of it if no part travels by itself."""

    def of(part: Box, held: Collection[Box]) -> int:
        size = volume(part) * route.item_bytes
        direct = direct_bytes is not None and size >= direct_bytes and is_contiguous(part, held)
        return 0 if direct else aligned(size)

    return tuple(
        sum(
            of(part, need.boxes if side == "loads" else piece.holding.boxes)
            for piece in need.received
            if (part := share.of(piece.box)) is not None
        )
        for need in route.needs
    )
