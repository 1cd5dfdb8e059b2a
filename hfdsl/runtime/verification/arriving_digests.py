"""Digests of weights in a role's own memory, taken while more weights arrive.

An example
----------
An engine receives four weights of one size in four buckets, with ``READS`` of 2, and ties ``head`` to ``embed``::

    bucket    writes     moments         digests of
    0         embed
    1         q          0
    2         v                          q        once the device comes to moment 0
    3         head       1               embed, head, v    moment 1

``embed`` has to wait: its memory is written once more. So pieces whose memory overlaps are read together, after the
last write into any of them. A sync that lays out the groups first submits the whole exchange, and then all digests,
each of which waits on its own stream for its moment. The next one submits each with its moment (``digest_stream``).

The digests cover the memory that the role keeps. If ``held_weights`` names other memory than was written, at the end of
the exchange or after the load, or if that has been written since, as by a role that scales its weights after a load,
digests are taken from ``held_weights``, after the load.

The groups follow from the addresses and strides of the pieces, where they lie in the whole, and from which moment comes
after which writes. While all of these are as in the last sync, so are the groups (``digest_stream``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, Final

import torch

from hfdsl.runtime.digests import DigestLayouts, DigestValues
from hfdsl.runtime.verification.digest_stream import DigestsBeside, GroupToRead, Moment, PiecesToRead, moment
from hfdsl.runtime.weights.held_boxes import HeldBoxes, located_pieces
from hfdsl.runtime.weights.held_parts import HeldPart, pieces_of

READS: Final = 8
"""The maximum number of groups of weights read one after another; the last one remains when all have arrived."""


class ArrivingDigests:
    """The digests of the weights that a rank loads in one sync, ``size`` bytes; ``layouts`` are kept for the next.

    They are written into ``pieces``, of which ``kinds`` has all but addresses and values; ``places`` says where in the
    whole each piece of a rank lies.
    """

    def __init__(
        self,
        size: int,
        pieces: Mapping[str, HeldPart],
        kinds: Sequence[Any],
        places: HeldBoxes,
        rank: int,
        layouts: DigestLayouts | None = None,
    ) -> None:
        self._size, self._since, self._layouts = size, 0, layouts
        self._to_read = PiecesToRead(pieces, (places, rank), kinds)
        self._moments: list[Moment] = []
        self._written: list[tuple[frozenset[str], int]] = []  # parameters, and the number of the moment after a write
        self._beside = DigestsBeside(self._to_read, layouts=layouts)
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] | None = None  # once all has been submitted

    def note_write(self, names: frozenset[str], size: int) -> None:
        """Note that writes of ``size`` bytes into parameters of these names have been submitted."""
        self._since += size
        self._written.append((names, len(self._moments)))
        if self._since * READS >= self._size:
            self._mark()

    def _mark(self) -> None:
        number, point = len(self._moments), moment()
        self._moments.append(point)
        self._since = 0
        if number == 0:
            self._beside.begin_again()  # not before the first messages: these are on their way meanwhile
        self._beside.read_after(number, point)

    def end(self, state: Any) -> None:
        """Read the rest once all writes are submitted; ``state`` are the weights as the role reports them."""
        self._mark()
        if not self.are_of(state):
            return
        if not self._beside.has_read(self._written):
            self._beside.read(self._groups, self._moments, self._written)
        self._tensors = [piece.tensor for piece in self._to_read.pieces.values() if not piece.tensor.is_inference()]
        self._versions = _versions(self._tensors)

    def are_of(self, state: Any) -> bool:
        """Whether a role reports the memory that was written."""
        held = pieces_of(state)
        return held is not None and _same_memory(self._to_read.pieces, held)

    def _groups(self) -> Iterator[GroupToRead]:
        """The parts to read after each moment."""
        pieces, (places, rank) = self._to_read.pieces, self._to_read.given
        last = dict.fromkeys(pieces, 0)
        for names, number in self._written:
            last |= {name if name in pieces else places.layout.stored_as(name): number for name in names}
        for together in _overlapping(pieces):
            last |= dict.fromkeys(together, max(last[name] for name in together))
        groups: dict[int, list[tuple[str, HeldPart]]] = {}
        for name, part in located_pieces(pieces, places, rank):
            groups.setdefault(last[name], []).append((name, part))
        for number in sorted(groups):
            yield GroupToRead(number, groups[number], beside=number < max(groups))

    def values(self) -> DigestValues | None:
        """The digests, once the device has finished; None if the role now keeps other weights."""
        if self._versions is None:
            return None
        values = self._beside.values()
        return values if self._versions == _versions(self._tensors) else None


def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    """The number of writes into each tensor, which those of inference mode do not count."""
    return [*map(attrgetter("_version"), tensors)]


def _same_memory(pieces: Mapping[str, HeldPart], others: Mapping[str, HeldPart]) -> bool:
    """Whether parts of the same names are the same elements of the same memory, as those of one tensor are."""
    if pieces.keys() != others.keys():
        return False
    ours, theirs = [*pieces.values()], [others[name] for name in pieces]
    tensors, other_tensors = ([part.tensor for part in parts] for parts in (ours, theirs))
    if all(map(is_, tensors, other_tensors)) and [part.offset for part in ours] == [part.offset for part in theirs]:
        return True
    return [*map(_place, ours)] == [*map(_place, theirs)]


def _place(piece: HeldPart) -> tuple[Any, ...]:
    tensor = piece.tensor
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(), piece.offset


def _overlapping(pieces: Mapping[str, HeldPart]) -> Iterator[Sequence[str]]:
    """The names of pieces whose memory may overlap."""
    spans = sorted((*_span(piece.tensor), name) for name, piece in pieces.items() if piece.tensor.numel())
    together, end = list[str](), 0
    for start, stop, name in spans:
        if start >= end:
            if len(together) > 1:
                yield together
            together = []
        together.append(name)
        end = max(end, stop)
    if len(together) > 1:
        yield together


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte, and of the one after the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
