"""Schedules: which rank sends which box of a parameter to which rank, so that every rank has what its layout says.

A worked example
----------------
A model of two weights of 8 rows on ``Mesh(dp=2, tp=2)``, whose layout is ``Slices(0)``, goes to two engines on other
GPUs, ``Mesh(dp=2)``, that hold all of it. Each engine needs two pieces of each weight, and for each piece two ranks
have it, ``dp=0`` and ``dp=1``::

    weight   piece   owners    to engine 0 from   to engine 1 from
    a        [0:4]   0, 2      0                  2
    a        [4:8]   1, 3      1                  3
    b        [0:4]   0, 2      0                  2
    b        [4:8]   1, 3      1                  3

Each rank sends one piece of each weight. With a single engine the second weight would come from ``dp=1``: owners take
turns, over the ranks that need a piece and then over the parameters that lie alike.

The order of owners is: the rank itself, which sends nothing; ranks of the same host; ranks that differ from it on fewer
axes of the mesh. It applies to each element, also where ranks hold an element within different boxes. So where both
roles share processes, and the layout of the target makes larger parts of whole shards, each rank receives from its
neighbors in the micro-data-parallel group, each of whom sends all that it holds to all others: an all-gather, of which
``gather_groups`` gives the groups.

Every rank computes the same schedule by itself: it depends on nothing but its arguments. ``compile_schedule`` proves it
(``protocols/resharding.py``) or raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from operator import attrgetter
from typing import Final

from hfdsl.errors import ProtocolError
from hfdsl.plan import buckets
from hfdsl.plan.buckets import Bucket, on_their_way
from hfdsl.plan.owners import Owners
from hfdsl.protocols.boxes import Box, total, volume, whole
from hfdsl.protocols.layouts import Layout, Parameter
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.resharding import Need, Piece, RankMap, Route, flaws, routes

BUCKET_BYTES: Final = 256 * 2**20
"""The most bytes that a rank receives before they are in their place."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A box of the full ``parameter`` from world rank ``source`` of one role to ``target`` of the other."""

    parameter: Parameter
    box: Box
    source: int
    target: int

    @property
    def bytes(self) -> int:
        """The bytes of the box."""
        return volume(self.box) * self.parameter.item_bytes


@dataclass(frozen=True, slots=True)
class WeightMessage:
    """The boxes that one rank sends to another in a bucket; those of at least ``direct_bytes`` travel by themselves."""

    source: int
    target: int
    transfers: tuple[Transfer, ...]
    direct_bytes: int


@dataclass(frozen=True)
class Schedule:
    """The bytes that move in a sync. Tuples have an entry for each target rank.

    ``shared`` are the target ranks in the process of a source rank. With ``in_place`` what a rank holds becomes a part
    of what it loads; else it keeps both. ``hosts`` of each side are by rank; None if unknown.
    """

    parameters: tuple[Parameter, ...]
    routes: tuple[Route, ...]
    source_mesh: Mesh
    target_mesh: Mesh
    shared: RankMap = field(default_factory=dict)
    in_place: bool = True
    bucket_bytes: int = BUCKET_BYTES
    hosts: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None)

    # -- bytes

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """The bytes that a rank has after the sync."""
        return self._per_rank(lambda need: total(need.boxes))

    @cached_property
    def received(self) -> tuple[int, ...]:
        """The bytes that come from other ranks."""
        return self._per_rank(lambda need: total(need.boxes) - need.owned_elements)

    @cached_property
    def sent(self) -> tuple[float, ...]:
        """The bytes that a source rank sends where all replicas of a part send equally much of it, by source rank."""
        counts = [0.0] * self.source_mesh.world_size
        for route in self.routes:
            size = route.item_bytes * len(route.parameters)
            by_holders = dict[tuple[int, ...], int]()
            for need in route.needs:
                for piece in need.received:
                    holders = piece.holding.ranks
                    by_holders[holders] = by_holders.get(holders, 0) + volume(piece.box) * len(need.ranks) * size
            for holders, total_bytes in by_holders.items():
                for rank in holders:
                    counts[rank] += total_bytes / len(holders)
        return tuple(counts)

    @cached_property
    def sent_once(self) -> tuple[float, ...]:
        """The most bytes of what a source rank sends, where a part that goes to several readers counts once."""
        counts = [0.0] * self.source_mesh.world_size
        for route in self.routes:
            size = route.item_bytes * len(route.parameters)
            readers = Counter[tuple[tuple[int, ...], Box]]()
            for need in route.needs:
                for piece in need.received:
                    readers[piece.holding.ranks, piece.box] += len(need.ranks)
            for (holders, box), count in readers.items():
                for rank in holders:
                    counts[rank] += volume(box) * size * min(count / len(holders), 1)
        return tuple(counts)

    @cached_property
    def redundant(self) -> tuple[int, ...]:
        """The bytes that a rank holds for the source beside those for the target: 0 if no roles share processes."""
        held = self.source_bytes(attrgetter("item_bytes"))
        owned = self._per_rank(lambda need: need.owned_elements) if self.in_place else [0] * len(held)
        return tuple(own - kept for own, kept in zip(held, owned, strict=True))

    def source_bytes(self, item_bytes: Callable[[Parameter], int]) -> tuple[int, ...]:
        """The bytes that a rank holds for the source, which may keep parameters in other dtypes."""
        held = dict.fromkeys(range(self.target_mesh.world_size), 0)
        sources = dict[int, int]()
        for route in self.routes:
            size = sum(map(item_bytes, route.parameters))
            for holding in route.sources:
                elements = total(holding.boxes)
                for rank in holding.ranks:
                    sources[rank] = sources.get(rank, 0) + elements * size
        for target, source in self.shared.items():
            held[target] = sources.get(source, 0)
        return tuple(held.values())

    @property
    def peak(self) -> tuple[int, ...]:
        """The peak bytes of weights that a rank has for the target: its own parts, and those in flight."""
        staging = on_their_way([bucket.bytes for bucket in self.buckets]) if self.bucket_bytes else 0
        return tuple(size + min(staging, received) for size, received in zip(self.needed, self.received, strict=True))

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The parameters in order, in buckets; a rank receives at most ``bucket_bytes`` in two of them."""
        routed = ((parameter, self.route_of(parameter)) for parameter in self.parameters)
        return tuple(buckets.buckets(routed, self.bucket_bytes))

    def route_of(self, parameter: Parameter) -> Route:
        """The route of one of the parameters."""
        return self._places[parameter.name][0]

    @property
    def direct_bytes(self) -> int:
        """The least bytes of a box that travels by itself."""
        return buckets.BROADCAST_BYTES if self.is_whole else buckets.SEND_BYTES

    @cached_property
    def is_whole(self) -> bool:
        """Whether every rank on both sides holds every parameter whole, unlike stages and experts."""
        return all(
            sum(len(part.ranks) for part in parts if part.boxes == (whole(route.shape),)) == mesh.world_size
            for route in self.routes
            if 0 not in route.shape
            for parts, mesh in ((route.sources, self.source_mesh), (route.needs, self.target_mesh))
        )

    def _per_rank(self, elements: Callable[[Need], int]) -> tuple[int, ...]:
        by_ranks = dict[tuple[int, ...], int]()
        for route in self.routes:
            size = route.item_bytes * len(route.parameters)
            for need in route.needs:
                by_ranks[need.ranks] = by_ranks.get(need.ranks, 0) + elements(need) * size
        counts = [0] * self.target_mesh.world_size
        for ranks, count in by_ranks.items():
            for rank in ranks:
                counts[rank] += count
        return tuple(counts)

    # -- who sends what

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers, in the order of the parameters, then of the target ranks and the boxes that they need."""
        return tuple(self.of(self.parameters))

    def of(self, parameters: Iterable[Parameter], target: int | None = None) -> Iterator[Transfer]:
        """The transfers of some parameters, to all ranks or to one, in order."""
        for parameter in parameters:
            route, number = self._places[parameter.name]
            for need in route.needs:
                for place, rank in enumerate(need.ranks):
                    if target is None or rank == target:
                        turn = number * len(need.ranks) + place
                        for piece in need.received:
                            yield Transfer(parameter, piece.box, self._owner(piece, rank, turn), rank)

    def received_by(self, target: int) -> tuple[Transfer, ...]:
        """The transfers that a target rank receives, in the order of ``transfers``."""
        return tuple(self.of(self.parameters, target))

    def pieces_of(self, target: int) -> Iterator[Transfer]:
        """The pieces that a rank has after the sync: those that it receives, and those already in its process."""
        for parameter in self.parameters:
            route, number = self._places[parameter.name]
            for need in route.needs:
                if target in need.ranks:
                    turn = number * len(need.ranks) + need.ranks.index(target)
                    for piece in need.pieces:
                        resident = piece.holding is need.owned
                        source = self.shared[target] if resident else self._owner(piece, target, turn)
                        yield Transfer(parameter, piece.box, source, target)

    @cached_property
    def traffic(self) -> tuple[Mapping[int, int], ...]:
        """For each target rank the bytes of ``pieces_of``, by source rank."""
        traffic: list[dict[int, int]] = [{} for _ in range(self.target_mesh.world_size)]
        for route in self.routes:
            for need in route.needs:
                for place, rank in enumerate(need.ranks):
                    for piece in need.pieces:
                        size = volume(piece.box) * route.item_bytes
                        for source, times in self._turns(route, need, place, piece):
                            traffic[rank][source] = traffic[rank].get(source, 0) + times * size
        return tuple(traffic)

    def _turns(self, route: Route, need: Need, place: int, piece: Piece) -> Iterator[tuple[int, int]]:
        """Who has a piece, and of how many parameters of the route that rank gives it: owners take turns."""
        rank, count = need.ranks[place], len(route.parameters)
        if piece.holding is need.owned:
            yield self.shared[rank], count
            return
        owners = self._owners.nearest(piece.holding.ranks, rank)
        period = len(owners) // gcd(len(need.ranks), len(owners))
        for number in range(min(count, period)):
            yield owners[(number * len(need.ranks) + place) % len(owners)], -(-(count - number) // period)

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """For each target rank the ranks of ``pieces_of``."""
        return tuple(tuple(sorted(by_source)) for by_source in self.traffic)

    def messages_from(self, source: int) -> tuple[tuple[WeightMessage, ...], ...]:
        """The messages that a source rank sends, bucket by bucket, in the order of all messages."""
        return self._messages(None, source)

    def messages_to(self, target: int) -> tuple[tuple[WeightMessage, ...], ...]:
        """The messages that a target rank receives, in the same order: in a bucket one from each rank with a part."""
        return self._messages(target, None)

    def _messages(self, target: int | None, source: int | None) -> tuple[tuple[WeightMessage, ...], ...]:
        if (target, source) not in self._messages_by_rank:
            self._messages_by_rank[target, source] = tuple(
                tuple(self._in_bucket(bucket, target, source)) for bucket in self.buckets
            )
        return self._messages_by_rank[target, source]

    def _in_bucket(self, bucket: Bucket, target: int | None, source: int | None) -> Iterator[WeightMessage]:
        by_pair: dict[tuple[int, int], list[Transfer]] = {}
        for share in bucket.shares:
            for transfer in self.of([share.parameter], target):
                box = share.of(transfer.box)
                if box is not None and source in (None, transfer.source):
                    part = replace(transfer, box=box)
                    by_pair.setdefault((transfer.source, transfer.target), []).append(part)
        messages = (WeightMessage(*pair, tuple(transfers), self.direct_bytes) for pair, transfers in by_pair.items())
        yield from sorted(messages, key=self._turn)

    def _turn(self, message: WeightMessage) -> tuple[int, int]:
        """The order of the messages of a bucket, in rounds: in each a rank sends and receives one at most."""
        rounds = max(self.source_mesh.world_size, self.target_mesh.world_size)
        return (message.target - message.source) % rounds, message.source

    @cached_property
    def gather_groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of source ranks whose all-gather is the sync; empty if it is none, or if nothing moves.

        All that a rank of a group holds goes to all others of it, and they receive nothing else.
        """
        groups = dict[int, set[int]]()
        for route in self.routes:
            for need in route.needs:
                if not _whole_holdings(need):
                    return ()
                for place, rank in enumerate(need.ranks):
                    if rank not in self.shared:
                        return ()
                    senders = {self._owner(piece, rank, place) for piece in need.received}
                    groups.setdefault(self.shared[rank], {self.shared[rank]}).update(senders)
        if any(groups.get(peer) != group for group in groups.values() for peer in group):
            return ()
        if all(len(group) == 1 for group in groups.values()):
            return ()
        return tuple(dict.fromkeys(tuple(sorted(group)) for group in groups.values()))

    @cached_property
    def _places(self) -> Mapping[str, tuple[Route, int]]:
        return {
            parameter.name: (route, number)
            for route in self.routes
            for number, parameter in enumerate(route.parameters)
        }

    @cached_property
    def _messages_by_rank(self) -> dict[tuple[int | None, int | None], tuple[tuple[WeightMessage, ...], ...]]:
        return {}

    def _owner(self, piece: Piece, target: int, turn: int) -> int:
        """The rank that sends a piece."""
        return self._owners.of_turn(piece.holding.ranks, target, turn)

    @cached_property
    def _owners(self) -> Owners:
        return Owners(self.source_mesh, self.shared, self.hosts)


def _whole_holdings(need: Need) -> bool:
    """Whether all that is received of a holding is all of it."""
    received: dict[int, set[Box]] = {}
    for piece in need.received:
        received.setdefault(id(piece.holding), set()).add(piece.box)
    return all(received[id(piece.holding)] == set(piece.holding.boxes) for piece in need.received)


def compile_schedule(
    parameters: Iterable[Parameter],
    source_layout: Layout,
    source_mesh: Mesh,
    target_layout: Layout,
    target_mesh: Mesh,
    shared: RankMap | None = None,
    *,
    in_place: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    hosts: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
) -> Schedule:
    """The schedule by which ranks of ``target_mesh`` get their parts of parameters from ranks of ``source_mesh``.

    Raises:
        ProtocolError: HF734 a parameter cannot be cut as a layout says, HF735 boxes overlap, leave the parameter or
            make no tensor, HF736 a rank would lack elements.

    >>> from hfdsl.protocols.layouts import Replicas, Slices
    >>> weights = [Parameter("a", (8,)), Parameter("b", (8,))]
    >>> schedule = compile_schedule(weights, Slices(0), Mesh(dp=2, tp=2), Replicas(), Mesh(dp=2))
    >>> [(each.parameter.name, each.box, each.source, each.target) for each in schedule.transfers][:3]
    [('a', ((0, 4),), 0, 0), ('a', ((4, 8),), 1, 0), ('a', ((0, 4),), 2, 1)]
    >>> schedule.received, schedule.peak
    ((32, 32), (64, 64))
    """
    all_parameters = tuple(parameters)
    distance = Owners(source_mesh, shared or {}, hosts).distance
    paths = routes(all_parameters, source_layout, source_mesh, target_layout, target_mesh, shared, distance)
    routed = {parameter.name for route in paths for parameter in route.parameters}
    schedule = Schedule(
        parameters=tuple(parameter for parameter in all_parameters if parameter.name in routed),
        routes=paths,
        source_mesh=source_mesh,
        target_mesh=target_mesh,
        shared=shared or {},
        in_place=in_place,
        bucket_bytes=bucket_bytes,
        hosts=hosts,
    )
    for route in schedule.routes:
        for flaw in flaws(route):
            raise ProtocolError(flaw.code, flaw.message)
    return schedule
