"""The messages of a rank in an exchange, laid out once: their bytes, and their parts in what a role holds.

A worked example. A rank sends a message with two large parts of a weight of 4,096 rows, which it holds in one tensor
``w``, and a small one of another, ``b``; the large ones are 1,000 rows, and 1,000 columns of the others::

    operation    part                  in the rank's tensor              sent from
    0            "b"                   b, all of it                      the buffer, bytes 0 to 64
    1            rows 0 to 1000        w from element 0, contiguous      where it is
    2            columns 0 to 1000     w, 3096 x 1000, strided           the buffer, from byte 64

A message takes one operation for all of its small parts, and one for each part of at least ``direct_bytes``: both sides
know this from the schedule. If a rank holds such a part contiguously in its dtype, the part is sent from there and
received there. Each side decides this for itself; everything else is copied through a buffer.

A repeated sync reuses the places of each message's parts. ``MessageBuffers`` keep views, whose memory exists only
during an exchange. ``PartViews`` keep no tensors of the role, which may free or move them at any time. They keep only
the strides and offsets of the parts, which are valid as long as the role's tensors have the same dtypes, shapes,
strides and devices. So copying a message takes one call for all of its buffered parts, or two if some have other
strides than the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import torch

from hfdsl.plan.message_memory import aligned
from hfdsl.plan.resharding import WeightMessage
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.runtime.copying import EmptyTensors, copy_all
from hfdsl.runtime.rank.store import as_bytes
from hfdsl.runtime.weights.local_weights import HeldView, LocalWeights

AHEAD: Final = 2
"""The turns of an exchange that have memory at a time."""

MessageTurns: TypeAlias = Sequence[Sequence[WeightMessage]]
"""The messages of a rank; those of one turn have memory together."""


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A message and its number in the exchange; ``packed`` are the bytes u8[N] of its small parts.

    ``parts`` are views of the buffer, by place in the message. ``large`` are the places of the parts that travel by
    themselves; the ``direct`` ones among them are not in the buffer. ``copies`` are the parts of the buffer that are
    copied together, if the buffers are for the views of a rank. ``names`` are the parameters whose parts the message
    has, and ``bytes`` is the size of all parts.
    """

    message: WeightMessage
    number: int
    packed: torch.Tensor
    parts: Mapping[int, torch.Tensor]
    large: Sequence[int]
    direct: frozenset[int]
    copies: Sequence[CopiedParts] | None
    names: frozenset[str]
    bytes: int

    def operations(self, held: HeldParts | None) -> list[torch.Tensor]:
        """The bytes of each operation; parts that are not in the buffer are in the rank's own tensors."""
        flat = [] if self.packed.numel() == 0 else [self.packed]
        for at in self.large:
            if at not in self.direct:
                flat.append(as_bytes(self.parts[at]))
            elif held is None:
                raise TypeError(self.message)
            else:
                flat.append(held.views.bytes(self, at, held.held))
        return flat


CopiedParts: TypeAlias = tuple[Sequence[HeldView], list[torch.Tensor]]
"""Parts that one call copies: where a rank holds them, and their views of a buffer."""


class MessageBuffers:
    """The memory of messages; each turn reuses the memory of the turn ``AHEAD`` before it.

    Parts that a rank holds contiguously, according to its ``views``, need no memory; without ``views``, all parts do.
    """

    def __init__(self, turns: MessageTurns, device: torch.device | str, views: PartViews | None = None) -> None:
        self.views = views
        rooms, number = list[list[_Room]](), 0
        for messages in turns:
            rooms.append([])
            for message in messages:
                direct = frozenset[int]() if views is None else views.direct(number, torch.device(device).type)
                rooms[-1].append(_Room.of(message, number, direct))
                number += 1
        sizes = [sum(room.bytes for room in turn) for turn in rooms]
        largest = (max(sizes[turn::AHEAD], default=0) for turn in range(AHEAD))
        buffers = [torch.empty(size, dtype=torch.uint8, device=device) for size in largest]
        self.turns: list[list[BufferedMessage]] = []
        for at, turn in enumerate(rooms):
            start, buffered = 0, list[BufferedMessage]()
            for room in turn:
                buffered.append(room.buffered(buffers[at % AHEAD][start : start + room.bytes], views))
                start += room.bytes
            self.turns.append(buffered)
        self.memory = EmptyTensors(buffers)


def take_buffers(
    sync: ScheduledSync,
    side: str,
    rank: int,
    turns: MessageTurns,
    device: torch.device | str,
    views: PartViews | None = None,
) -> MessageBuffers:
    """The buffers of a side and rank, with memory; ``give_buffers`` keeps them after a successful exchange.

    After a failed exchange, a peer may still write into them, so they are not used again.
    """
    key = "buffers", side, rank, str(device)
    return take_memory(sync, key, views, lambda: MessageBuffers(turns, device, views))


def give_buffers(
    sync: ScheduledSync, side: str, rank: int, buffers: MessageBuffers, device: torch.device | str
) -> None:
    """Free the memory, and keep the rest."""
    give_memory(sync, ("buffers", side, rank, str(device)), buffers)


@dataclass(frozen=True, slots=True)
class _Room:
    """The places of a message's small and large parts, and of those large ones that need no buffer."""

    message: WeightMessage
    number: int
    small: Sequence[int]
    large: Sequence[int]
    direct: frozenset[int]

    @classmethod
    def of(cls, message: WeightMessage, number: int, direct: frozenset[int]) -> _Room:
        large = [at for at, transfer in enumerate(message.transfers) if transfer.bytes >= message.direct_bytes]
        small = [at for at in range(len(message.transfers)) if at not in set(large)]
        return cls(message, number, small, large, direct)

    @property
    def bytes(self) -> int:
        """The bytes of the buffer, including the padding that aligns the parts."""
        return sum(
            aligned(self.message.transfers[at].bytes) for at in (*self.small, *self.large) if at not in self.direct
        )

    def buffered(self, flat: torch.Tensor, views: PartViews | None) -> BufferedMessage:
        """The message with the parts in a buffer u8[bytes], the small ones first."""
        start, packed, parts = 0, 0, dict[int, torch.Tensor]()
        for at in (*self.small, *self.large):
            if at in self.direct:
                continue
            transfer = self.message.transfers[at]
            dtype = getattr(torch, transfer.parameter.dtype)
            shape = [stop - first for first, stop in transfer.box]
            parts[at] = flat[start : start + transfer.bytes].view(dtype).view(shape)
            start += aligned(transfer.bytes)
            packed += aligned(transfer.bytes) if transfer.bytes < self.message.direct_bytes else 0
        names = frozenset(transfer.parameter.name for transfer in self.message.transfers)
        return BufferedMessage(
            message=self.message,
            number=self.number,
            packed=flat[:packed],
            parts=parts,
            large=self.large,
            direct=self.direct,
            copies=None if views is None else views.copies(self.number, parts),
            names=names,
            bytes=sum(transfer.bytes for transfer in self.message.transfers),
        )


class WholeMessages:
    """One buffer u8[N] for each of a rank's messages in turn, in which a message has all of its parts.

    A message is ``padded`` in the buffer to a multiple of so many bytes, with zeros, as it is between its parts.
    """

    def __init__(
        self, turns: MessageTurns, device: torch.device | str, views: PartViews | None = None, *, padded: int
    ) -> None:
        self.views = views
        messages = [message for turn in turns for message in turn]
        rooms = [_Room.of(message, number, frozenset()) for number, message in enumerate(messages)]
        self.sizes = [room.bytes for room in rooms]
        self._padded = [-(-size // padded) * padded for size in self.sizes]
        self._buffer = torch.empty(max(self._padded, default=0), dtype=torch.uint8, device=device)
        self.messages = [room.buffered(self._buffer, views) for room in rooms]
        self.memory = EmptyTensors([self._buffer])

    def cleared(self, number: int) -> tuple[torch.Tensor, BufferedMessage]:
        """The bytes of a message, which are zeros until its parts are packed."""
        return self._buffer[: self._padded[number]].zero_(), self.messages[number]


Memory = TypeVar("Memory", MessageBuffers, WholeMessages)


def take_memory(
    sync: ScheduledSync, key: tuple[Any, ...], views: PartViews | None, create: Callable[[], Memory]
) -> Memory:
    """Memory that a sync keeps under a key, allocated again; new memory if that is for other views."""
    kept: Memory | None = sync.kept.pop(key, None)
    taken = create() if kept is None or kept.views is not views else kept
    taken.memory.allocate()
    return taken


def give_memory(sync: ScheduledSync, key: tuple[Any, ...], taken: MessageBuffers | WholeMessages) -> None:
    """Free the memory, and keep the rest; not after a failed exchange, as a peer may still write into it."""
    taken.memory.free()
    sync.kept[key] = taken


def pack(message: BufferedMessage, held: LocalWeights) -> None:
    """Write the parts of a message into its buffer, from the tensors of a rank."""
    for at, part in message.parts.items():
        transfer = message.message.transfers[at]
        held.copy_into(part, transfer.parameter, transfer.box)


class PartViews:
    """The parts of a rank's messages in the tensors that it holds.

    Raises:
        SyncError: if it does not hold one.
    """

    def __init__(self, held: LocalWeights, turns: MessageTurns) -> None:
        self.kinds = held.kinds
        self._messages = [_MessageViews.of(held, message) for turn in turns for message in turn]

    def direct(self, number: int, device_type: str) -> frozenset[int]:
        """The places of the parts of a message that need no buffer on devices of this type."""
        large = self._messages[number].large_devices
        return frozenset(at for at, device in large.items() if device == device_type)

    def copies(self, number: int, parts: Mapping[int, torch.Tensor]) -> Sequence[CopiedParts]:
        """The ``parts`` of a message in a buffer that are not computed, as they are copied together."""
        views = self._messages[number]
        together = ([at for at in alike if at in parts] for alike in views.alike)
        return [([views.parts[at] for at in places], [parts[at] for at in places]) for places in together if places]

    def _copies(self, message: BufferedMessage) -> Sequence[CopiedParts]:
        return self.copies(message.number, message.parts) if message.copies is None else message.copies

    def tensor(self, message: BufferedMessage, at: int, held: LocalWeights) -> torch.Tensor:
        """A part of a message where the rank holds it."""
        return held.tensor(self._messages[message.number].parts[at])

    def bytes(self, message: BufferedMessage, at: int, held: LocalWeights) -> torch.Tensor:
        """The bytes u8[N] of a direct part where the rank holds it."""
        return held.bytes(self._messages[message.number].parts[at])

    def pack(self, message: BufferedMessage, held: LocalWeights) -> None:
        """Write parts of a message into its buffer; computing a part takes the memory of a few rows."""
        for places, parts in self._copies(message):
            copy_all(parts, [*map(held.tensor, places)])
        views = self._messages[message.number]
        for at in views.computed:
            if at in message.parts:
                held.computed(views.parts[at]).copy_into(message.parts[at])

    def unpack(self, message: BufferedMessage, held: LocalWeights) -> None:
        """Write a message's buffered parts to where the rank holds them; its other parts have arrived there."""
        for places, parts in self._copies(message):
            copy_all([*map(held.tensor, places)], parts)
        views = self._messages[message.number]
        arrived = [held.pieces[name].tensor for name in {views.parts[at].name for at in message.direct}]
        # As a copy into a part does, which shares the count of its tensor.
        torch.autograd.graph.increment_version([tensor for tensor in arrived if not tensor.is_inference()])


@dataclass(frozen=True, slots=True)
class HeldParts:
    """The parts of messages in what a rank holds."""

    views: PartViews
    held: LocalWeights

    def tensor(self, message: BufferedMessage, at: int) -> torch.Tensor:
        """A part of a message."""
        return self.views.tensor(message, at, self.held)


def kept_views(sync: ScheduledSync, side: str, held: LocalWeights, turns: MessageTurns) -> PartViews:
    """The views of a side's rank: located again only if its tensors are of other kinds than in the previous sync.

    Raises:
        SyncError: if the rank does not hold a part.
    """
    views: PartViews | None = sync.kept.get(("views", side, held.rank))
    if views is None or views.kinds != held.kinds:
        views = sync.kept["views", side, held.rank] = PartViews(held, turns)
    return views


@dataclass(frozen=True, slots=True)
class _MessageViews:
    """The parts of a message: the places of those that are copied together, and of those that are computed.

    ``large_devices`` are the types of the devices of those contiguous parts that travel by themselves.
    """

    parts: Sequence[HeldView]
    alike: Sequence[Sequence[int]]
    computed: Sequence[int]
    large_devices: Mapping[int, str]

    @classmethod
    def of(cls, held: LocalWeights, message: WeightMessage) -> _MessageViews:
        parts = [held.view(transfer.parameter, transfer.box) for transfer in message.transfers]
        places = {at: held.tensor(part) for at, part in enumerate(parts) if part.box is None}
        dtypes = [getattr(torch, transfer.parameter.dtype) for transfer in message.transfers]
        dense = [at for at, tensor in places.items() if tensor.is_contiguous() and tensor.dtype == dtypes[at]]
        strided = [at for at in places if at not in set(dense)]
        computed = [at for at in range(len(parts)) if at not in places]
        large = {at: places[at].device.type for at in dense if message.transfers[at].bytes >= message.direct_bytes}
        return cls(parts, (dense, strided), computed, large)
