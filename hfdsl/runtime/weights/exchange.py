"""The exchange of a scheduled sync: exporting and loading ranks process its buckets together.

A worked example. Two trainers hold half of every weight, an engine needs all, and the schedule has three buckets::

    trainers 0 and 1           engine
                               expects buckets 0 and 1 of both
    send bucket 0, bucket 1
    bucket 0 has left          bucket 0 has arrived: writes it to its place
    send bucket 2              expects bucket 2
    bucket 1 has left          bucket 1 has arrived: writes it to its place
    bucket 2 has left          bucket 2 has arrived: writes it to its place

So the engine has what it needs and two buckets, each of which has at most half of ``Optimize.bucket_bytes``; a trainer
has two messages. Weights are read where the trainer has them, and written where the engine has them: no rank makes a
copy of all. Where every rank holds all of every weight, a bucket is one broadcast.

A part that is computed, such as weights with an adapter merged, is computed into its message, a few rows at a time.

Large parts that are contiguous leave and arrive where they are; the parts of a message are one operation where the
communicator can do that. For all others both sides allocate the memory of two messages and use it in turn
(``messages``). On a GPU a rank submits all its work at once and the device goes through it later, so a message with
memory of its own would keep it until it has been sent, and all messages together would be another copy of the weights.

Why no rank waits forever. All ranks are in one communicator, whose stream on a GPU does one thing after the other: a
send ends when its receiver has come to it. The messages have one order, and every rank goes through its own in this
order. Take the first of all that has not arrived: those before it have, so its sender has come to it, and its receiver
too. The order is by bucket and then by rounds, in each of which a rank sends or receives one message at most, so with
three of each side all are busy in every round::

    round 0    0 to 0, 1 to 1, 2 to 2
    round 1    0 to 1, 1 to 2, 2 to 0
    round 2    0 to 2, 1 to 0, 2 to 1

A reader that cannot write receives the rest all the same, and raises in the end.

Why it is one version. A trainer runs nothing else before its last message has left, and an engine nothing before the
last one is in its place: only then does its load return. An engine whose load fails half way raises, and refuses to
generate (HF770).

With ``Optimize.deltas`` the same messages have only what has changed (``hfdsl.runtime.weights.deltas``).

In one process, as on the local backend, the same messages are packed and unpacked, without a communicator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.runtime.digests import DigestLayouts, DigestValues
from hfdsl.runtime.rank.role_errors import sending
from hfdsl.runtime.rank.torch_internals import begin_together
from hfdsl.runtime.weights import deltas
from hfdsl.runtime.weights.held_boxes import HeldBoxes
from hfdsl.runtime.weights.local_weights import LocalWeights, local_places
from hfdsl.runtime.weights.messages import (
    AHEAD,
    BufferedMessage,
    HeldParts,
    MessageTurns,
    PartViews,
    give_buffers,
    kept_views,
    pack,
    take_buffers,
)
from hfdsl.runtime.weights.operations import ExchangeGroup, wait
from hfdsl.runtime.weights.resharding import Parts, copied_part, exported_weights, loaded_weights

if TYPE_CHECKING:
    from hfdsl.runtime.verification.arriving_digests import ArrivingDigests


class Exported:
    """The parts of a source rank for one target rank, in the memory of its role."""

    def __init__(self, sync: ScheduledSync, held: LocalWeights, target: int) -> None:
        self.sync, self.held, self.target = sync, held, target

    @property
    def nbytes(self) -> int:
        """The bytes for the target."""
        return self.sync.schedule.traffic[self.target].get(self.held.rank, 0)

    def parts(self) -> Parts:
        """Copies of all parts."""
        parts: Parts = {}
        for transfer in self.sync.schedule.received_by(self.target):
            if transfer.source == self.held.rank:
                parts.setdefault(transfer.parameter.name, {})[transfer.box] = copied_part(self.held, transfer)
        return parts

    def arriving(self) -> LocalArriving:
        """The parts for a reader in this process."""
        return LocalArriving(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.parts(),)  # where it is stored after all


def exported(syncs: Sequence[ScheduledSync], rank: int, values: Any, label: str) -> Iterator[tuple[str, Exported]]:
    """The columns of a source rank's export, for each reader of its parts.

    Raises:
        SyncError: HF773 if the rank has other parts than its layout says.
    """
    for sync in syncs:
        held = exported_weights(sync, rank, values, label)
        for target, sources in enumerate(sync.schedule.sources):
            if rank in sources:
                yield sync.column(target), Exported(sync, held, target)
        kept_views(sync, "exports", held, _sent(sync, rank))  # raises before anybody waits for it


# -- sending -----------------------------------------------------------------------------------------------------------


def send_all(exchanges: Mapping[tuple[int, ...], Sequence[Exported]]) -> None:
    """Take part in exchanges, one after another, each with those ranks of the links.

    Raises:
        RoleError: HF806 if weights cannot be computed or sent, or a reader is lost or does not arrive in time.
    """
    from hfdsl.runtime.transports.broadcast import communicator_of
    from hfdsl.runtime.transports.direct import member

    with torch.no_grad():
        for ranks, exports in exchanges.items():
            held = exports[0].held
            with sending(held.label, held.rank):
                send(exports, communicator_of(ranks), member().device_of(ranks))


def send(exports: Sequence[Exported], communicator: Any, device: str) -> None:
    """Send a source's part to all readers of a sync, whose ranks follow the senders' in a group."""
    held, sync = exports[0].held, exports[0].sync
    turns, group = _sent(sync, held.rank), ExchangeGroup(sync, communicator)
    if sync.deltas:
        deltas.send_changes(group, turns, held, device)
        return
    views = kept_views(sync, "exports", held, turns)
    buffers = take_buffers(sync, "exports", held.rank, turns, device, views)
    leaving: deque[Sequence[Any]] = deque()
    for (message,) in buffers.turns:
        if len(leaving) == AHEAD:
            wait(leaving.popleft())
        views.pack(message, held)
        begin = partial(group.send, message.message)
        leaving.append(begin_together(communicator, begin, message.operations(HeldParts(views, held))))
    for works in leaving:
        wait(works)
    give_buffers(sync, "exports", held.rank, buffers, device)


def _sent(sync: ScheduledSync, rank: int) -> MessageTurns:
    """The messages of a source, one after another: one to each reader, or in a broadcast one for all."""
    buckets = sync.schedule.messages_from(rank)
    return [[message] for bucket in buckets for message in (bucket[:1] if sync.broadcast else bucket)]


# -- receiving ---------------------------------------------------------------------------------------------------------

Write: TypeAlias = Callable[[BufferedMessage], None]
"""A reader's use of a message, whose memory is reused afterwards."""


class Arriving(ABC):
    """Weights in transit from a source rank."""

    nbytes = 0  # they are never in a store

    @property
    @abstractmethod
    def device(self) -> torch.device | str:
        """The device on which they arrive."""

    @abstractmethod
    def receive(
        self, sync: ScheduledSync, rank: int, peers: Mapping[int, Arriving], held: HeldParts | None, write: Write
    ) -> None:
        """Receive a target rank's parts from all ``peers``, by source rank, including this one.

        They arrive in what the rank holds, or in a message that ``write`` gets; without ``held`` all in messages.
        """


class LocalArriving(Arriving):
    """The weights of a source in this process."""

    def __init__(self, exported: Exported) -> None:
        self._held = exported.held

    @property
    def device(self) -> torch.device:
        """As ``Arriving.device``."""
        return self._held.device

    def receive(
        self, sync: ScheduledSync, rank: int, peers: Mapping[int, Arriving], held: HeldParts | None, write: Write
    ) -> None:
        """As ``Arriving.receive``."""
        sources = {source: peer._held for source, peer in peers.items() if isinstance(peer, LocalArriving)}
        turns = sync.schedule.messages_to(rank)
        buffers = take_buffers(sync, "loads", rank, turns, self.device, None if held is None else held.views)
        for message in (message for turn in buffers.turns for message in turn):
            source = sources[message.message.source]
            pack(message, source)
            for at in message.direct:
                if held is not None:
                    transfer = message.message.transfers[at]
                    source.copy_into(held.tensor(message, at), transfer.parameter, transfer.box)
            write(message)
        give_buffers(sync, "loads", rank, buffers, self.device)


class RemoteArriving(Arriving):
    """The weights of a source in another process; ``ranks`` of the links take part, senders first."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self._ranks = ranks

    @property
    def device(self) -> str:
        """As ``Arriving.device``."""
        from hfdsl.runtime.transports.direct import member

        return member().device_of(self._ranks)

    def receive(
        self, sync: ScheduledSync, rank: int, peers: Mapping[int, Arriving], held: HeldParts | None, write: Write
    ) -> None:
        """As ``Arriving.receive``.

        Raises:
            RuntimeError: from torch, when a peer is lost or does not arrive in time.
        """
        from hfdsl.runtime.transports.broadcast import communicator_of

        receive(sync, rank, communicator_of(self._ranks), self.device, held, write)


def receive(
    sync: ScheduledSync, rank: int, communicator: Any, device: str, held: HeldParts | None, write: Write
) -> None:
    """Take part in the exchange as a target rank that receives from all its senders."""
    group = ExchangeGroup(sync, communicator)
    if sync.deltas:
        deltas.receive_changes(group, rank, device, held, write)
        return
    views = None if held is None else held.views
    buffers = take_buffers(sync, "loads", rank, sync.schedule.messages_to(rank), device, views)
    expected: deque[list[tuple[Sequence[Any], BufferedMessage]]] = deque()

    def expect(turn: int) -> None:
        works = []
        for message in buffers.turns[turn]:
            begin = partial(group.receive, message.message)
            works.append((begin_together(communicator, begin, message.operations(held)), message))
        expected.append(works)

    for turn in range(min(AHEAD, len(buffers.turns))):
        expect(turn)
    for turn in range(len(buffers.turns)):
        for works, message in expected.popleft():
            wait(works)
            write(message)
        if turn + AHEAD < len(buffers.turns):
            expect(turn + AHEAD)
    if device == "cuda":
        torch.cuda.current_stream().synchronize()  # what has been submitted may wait for a sender that is lost
    give_buffers(sync, "loads", rank, buffers, device)


@dataclass(frozen=True, slots=True)
class PendingExchange:
    """The message to a reader before the exchange: the columns to expect, and the participating ranks."""

    keys: tuple[ColumnSlice, ...]
    ranks: tuple[int, ...]

    def content(self) -> dict[ColumnSlice, Arriving]:
        """The columns, which arrive when their reader loads them."""
        return {key: RemoteArriving(self.ranks) for key in self.keys}


class ArrivingWeights:
    """All weights that a target rank loads in a sync, in transit from ``peers``, by source rank."""

    def __init__(self, sync: ScheduledSync, rank: int, peers: Mapping[int, Arriving], label: str) -> None:
        self._sync, self._rank, self._peers, self._label = sync, rank, peers, label
        self._received = False
        self._layouts: DigestLayouts | None = None
        self._digests: ArrivingDigests | None = None
        self._keeper: Any = None

    def digest(self, layouts: DigestLayouts | None = None) -> None:
        """Have digests taken of the weights written into a role's own memory; ``layouts`` are kept for the next."""
        self._layouts = layouts or DigestLayouts()

    def digests(self) -> DigestValues | None:
        """The digests of the weights that the role loaded; None if they must be taken from its current weights."""
        if self._digests is None or not self._digests.are_of(self._keeper.held_weights(self._sync.state)):
            return None
        return self._digests.values()

    def load(self, worker: Any, load: Callable[[dict[str, torch.Tensor]], Any], *, in_place: bool) -> Any:
        """Write the weights into a role's own memory if ``in_place`` and the role gives access; else call ``load``.

        Raises:
            SyncError: HF774 if the role has others than its layout says.
        """
        try:
            if in_place:
                with worker.receiving(self._sync.state) as places:
                    if places is not None:
                        self._write_to(places, worker)
                        return None
            weights = self._empty()
            self._write_to(weights)
            return load(weights)
        finally:
            if not self._received:
                self._receive(None, lambda message: None)  # those who send wait for it

    def _write_to(self, values: Any, keeper: Any = None) -> None:
        """Write the arriving weights, and begin with their digests if they are of a role that keeps ``values``."""
        held, failures = loaded_weights(self._sync, self._rank, values, self._label), list[Exception]()
        turns = self._sync.schedule.messages_to(self._rank)
        views = kept_views(self._sync, "loads", held, turns)  # raises before anything is written
        last, digests = sum(map(len, turns)) - 1, self._begun_digests(held, views, keeper)

        def write(message: BufferedMessage) -> None:
            try:
                if failures:
                    return
                views.unpack(message, held)
                if digests is not None:
                    digests.note_write(message.names, message.bytes)
                    if message.number == last:
                        digests.end(keeper.held_weights(self._sync.state))
            except Exception as error:  # noqa: BLE001  # raised once all has arrived
                failures.append(error)

        self._receive(HeldParts(views, held), write)
        for failure in failures:
            raise failure

    def _receive(self, held: HeldParts | None, write: Write) -> None:
        self._received = True
        for peer in tuple(self._peers.values())[:1]:
            with torch.no_grad():
                peer.receive(self._sync, self._rank, self._peers, held, write)

    def _begun_digests(self, held: LocalWeights, views: PartViews, keeper: Any) -> ArrivingDigests | None:
        if self._layouts is None or not hasattr(keeper, "held_weights"):
            return None
        from hfdsl.runtime.verification.arriving_digests import ArrivingDigests

        size, places = self._sync.schedule.received[self._rank], HeldBoxes.loaded(self._sync)
        self._keeper = keeper
        self._digests = ArrivingDigests(size, held.pieces, views.kinds, places, self._rank, self._layouts)
        return self._digests

    def _empty(self) -> dict[str, torch.Tensor]:
        """Empty tensors of the layout's shapes."""
        schedule, weights = self._sync.schedule, dict[str, torch.Tensor]()
        device = next((peer.device for peer in self._peers.values()), "cpu")
        for parameter in schedule.parameters:
            shape, placed = local_places(self._sync.target_layout, parameter, schedule.target_mesh, self._rank)
            if placed:
                dtype = getattr(torch, parameter.dtype)
                weights[parameter.name] = torch.empty(shape, dtype=dtype, device=device)
        return weights
