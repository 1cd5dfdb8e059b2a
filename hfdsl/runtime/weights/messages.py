"""The messages of a rank in an exchange, laid out once: their bytes, and their parts in what a role holds.

A worked example. A rank sends two messages of a weight of 6 rows, which it holds in one tensor ``w``::

    message    its bytes                     parts in them           in the tensor
    0          buffer 0, bytes 0 to 32       rows 0 to 2 of "w"      w from element 0, 2 x 4
    1          buffer 1, bytes 0 to 64       rows 2 to 6 of "w"      w from element 8, 4 x 4

A sync that comes again finds the parts of every message where they were. ``MessageBuffers`` keep views, whose memory is
there only during an exchange. ``PartViews`` keep no tensors of the role, which may free or move its own at any time:
only the strides and offsets of the parts, which are the same while its tensors have the same dtypes, shapes, strides
and devices. So copying a message is one call for all its parts, or two where some have other strides than the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from hfdsl.plan.resharding import Transfer, WeightMessage
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.runtime.copying import EmptyTensors, copy_all
from hfdsl.runtime.weights.resharding import HeldView, LocalWeights

AHEAD: Final = 2
"""The turns of an exchange that have memory at a time."""

ALIGNMENT: Final = 16
"""The bytes of which every part of a message begins at a multiple, so that it can be viewed in its dtype."""

MessageTurns: TypeAlias = Sequence[Sequence[WeightMessage]]
"""The messages of a rank; those of one turn have memory together."""


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A message, its number in the exchange, its bytes u8[N], and its parts, which are views of them."""

    message: WeightMessage
    number: int
    flat: torch.Tensor
    parts: Sequence[torch.Tensor]
    names: frozenset[str]
    """The parameters of which it has parts."""


class MessageBuffers:
    """The bytes of messages, of which each turn uses those of the one ``AHEAD`` before it."""

    def __init__(self, turns: MessageTurns, device: torch.device | str) -> None:
        sizes = [sum(map(message_bytes, turn)) for turn in turns]
        largest = (max(sizes[turn::AHEAD], default=0) for turn in range(AHEAD))
        buffers = [torch.empty(size, dtype=torch.uint8, device=device) for size in largest]
        self.turns: list[list[BufferedMessage]] = []
        number = 0
        for turn, messages in enumerate(turns):
            start, buffered = 0, list[BufferedMessage]()
            for message in messages:
                flat = buffers[turn % AHEAD][start : start + message_bytes(message)]
                names = frozenset(transfer.parameter.name for transfer in message.transfers)
                buffered.append(BufferedMessage(message, number, flat, _parts(message, flat), names))
                start, number = start + message_bytes(message), number + 1
            self.turns.append(buffered)
        self.memory = EmptyTensors(buffers)


def take_buffers(
    sync: ScheduledSync, side: str, rank: int, turns: MessageTurns, device: torch.device | str
) -> MessageBuffers:
    """The buffers of a side and rank, with memory; ``give_buffers`` keeps them after an exchange that has ended well.

    After any other, a peer may still write into them, so they are not used again.
    """
    buffers = sync.kept.pop(("buffers", side, rank, str(device)), None) or MessageBuffers(turns, device)
    buffers.memory.allocate()
    return buffers


def give_buffers(
    sync: ScheduledSync, side: str, rank: int, buffers: MessageBuffers, device: torch.device | str
) -> None:
    """Free the memory, and keep the rest."""
    buffers.memory.free()
    sync.kept["buffers", side, rank, str(device)] = buffers


def message_bytes(message: WeightMessage) -> int:
    """The bytes of a message, with what aligns its parts."""
    return sum(_room(transfer) for transfer in message.transfers)


def _room(transfer: Transfer) -> int:
    return -(-transfer.bytes // ALIGNMENT) * ALIGNMENT


def _parts(message: WeightMessage, flat: torch.Tensor) -> list[torch.Tensor]:
    start, parts = 0, list[torch.Tensor]()
    for transfer in message.transfers:
        dtype = getattr(torch, transfer.parameter.dtype)
        shape = [stop - first for first, stop in transfer.box]
        parts.append(flat[start : start + transfer.bytes].view(dtype).view(shape))
        start += _room(transfer)
    return parts


def pack(message: BufferedMessage, held: LocalWeights) -> None:
    """Write the parts of a message into its bytes, from where a rank has them."""
    for part, transfer in zip(message.parts, message.message.transfers, strict=True):
        held.copy_into(part, transfer.parameter, transfer.box)


class PartViews:
    """The parts of a rank's messages in the tensors that it holds.

    Raises:
        SyncError: where it does not hold one.
    """

    def __init__(self, held: LocalWeights, turns: MessageTurns) -> None:
        self.kinds = held.kinds
        self._messages = [_MessageViews.of(held, message) for turn in turns for message in turn]

    def pack(self, message: BufferedMessage, held: LocalWeights) -> None:
        """Write the parts of a message into its bytes; what is computed needs the memory of a few rows."""
        views = self._messages[message.number]
        for places in views.alike:
            copy_all([message.parts[at] for at in places], [held.tensor(views.parts[at]) for at in places])
        for at in views.computed:
            held.computed(views.parts[at]).copy_into(message.parts[at])

    def unpack(self, message: BufferedMessage, held: LocalWeights) -> None:
        """Write the parts of a message where the rank holds them."""
        views = self._messages[message.number]
        for places in views.alike:
            copy_all([held.tensor(views.parts[at]) for at in places], [message.parts[at] for at in places])


def kept_views(sync: ScheduledSync, side: str, held: LocalWeights, turns: MessageTurns) -> PartViews:
    """The views of a side's rank: found again only where its tensors are of other kinds than in the sync before.

    Raises:
        SyncError: where the rank does not hold a part.
    """
    views: Any = sync.kept.get(("views", side, held.rank))
    if views is None or views.kinds != held.kinds:
        views = sync.kept["views", side, held.rank] = PartViews(held, turns)
    found: PartViews = views
    return found


@dataclass(frozen=True, slots=True)
class _MessageViews:
    """The parts of a message: the places of those that are copied together, and of those that are computed."""

    parts: Sequence[HeldView]
    alike: Sequence[Sequence[int]]
    computed: Sequence[int]

    @classmethod
    def of(cls, held: LocalWeights, message: WeightMessage) -> _MessageViews:
        parts = [held.view(transfer.parameter, transfer.box) for transfer in message.transfers]
        places = {at: held.tensor(part) for at, part in enumerate(parts) if part.box is None}
        dtypes = [getattr(torch, transfer.parameter.dtype) for transfer in message.transfers]
        dense = [at for at, tensor in places.items() if tensor.is_contiguous() and tensor.dtype == dtypes[at]]
        others = [at for at in places if at not in set(dense)]
        return cls(parts, (dense, others), [at for at in range(len(parts)) if at not in places])
