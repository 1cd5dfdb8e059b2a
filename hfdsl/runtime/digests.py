"""Digests of weights, independent of sharding: the digests of disjoint parts add up to the digest of the whole.

An example
----------
A weight x of 2 rows and 2 columns, whose rows have the factors 4 and 6 and whose columns 7 and 11 (the true ones are
64 bits, from a mixing function of the index)::

    x = [[1, 2],        rows:     (1 + 2) 4 + (4 + 6) 6  =  72
         [4, 6]]        columns:  (1 + 4) 7 + (2 + 6) 11 = 123        digest 195

    sliced by rows      rank 0:   3*4  + 1*7 + 2*11 =  41
                        rank 1:   10*6 + 4*7 + 6*11 = 154             41 + 154 = 195
    sliced by columns   rank 0:   1*4 + 4*6 + 5*7   =  63
                        rank 1:   2*4 + 6*6 + 8*11  = 132             63 + 132 = 195

The sums are over words of eight bytes: the bits of one element of eight bytes, or of four neighbors of two bytes. All
sums are modulo 2**64, so a digest is exact and independent of order. A part counts its factors from where it lies in
the whole, and where it begins or ends within a word, zeros stand for the elements of others. A tensor is read once, in
blocks that stay in the cache for both sums, on whatever device it is.

What it detects. The factors of a word's place are even but for that of its last dim, so their sum is odd: a change
within one word, such as a flipped bit, always changes the digest. So do two rows or columns that are swapped, a shifted
vocabulary and old values on one rank, but in about 1 of 2**63 cases. It is weaker where all elements that differ have
the same place in their words: those of two bytes in the last place count modulo 2**16. It is no defense against
an adversary who looks for a collision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from hfdsl.protocols.boxes import Box
from hfdsl.runtime.verification.digest_factors import MODULUS, Words, factors, factors_on
from hfdsl.runtime.verification.kept_launches import DigestReading, ReadGroup
from hfdsl.runtime.weights.held_parts import ComputedPart, HeldPart

if TYPE_CHECKING:
    from hfdsl.runtime.verification.fused_digests import FusedSums, KernelLaunch

__all__ = [
    "BegunDigests",
    "DeviceSums",
    "Digest",
    "DigestLayouts",
    "DigestValues",
    "Digests",
    "HeldPart",
    "as_words",
    "device_sums",
    "digests",
    "host_digest",
]

WORD_BYTES: Final = 8

BLOCK_WORDS: Final = 2**15
"""The number of words summed in both directions at once, which fit a core's cache."""


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a part of a weight."""

    name: str
    box: Box
    dtype: str
    value: int


Digests: TypeAlias = tuple[Digest, ...]
"""The digests of all parts on a rank."""


class DigestValues(NamedTuple):
    """The digests of all parts on a rank, whose names, boxes and dtypes are often those of the last sync."""

    parts: tuple[tuple[str, Box, str], ...]
    values: Sequence[int]

    @classmethod
    def of(cls, digests: Digests) -> DigestValues:
        """The table and the values of single digests."""
        parts = tuple([(digest.name, digest.box, digest.dtype) for digest in digests])
        return cls(parts, [digest.value for digest in digests])

    def digests(self) -> Digests:
        """The single digests."""
        return tuple([Digest(*part, value) for part, value in zip(self.parts, self.values, strict=True)])


def digests(pieces: Iterable[tuple[str, HeldPart]], dtypes: Mapping[str, str] | None = None) -> Digests:
    """The digests of pieces by name; of a weight that ``dtypes`` lists, after a cast to that dtype.

    >>> [digest.value for digest in digests([("x", HeldPart(torch.zeros(2, 2)))])]
    [0]
    """
    begun = BegunDigests(dtypes)
    begun.add(pieces)
    return begun.digests()


@dataclass(frozen=True, slots=True)
class _PartLayout:
    """All that a digest needs of a part besides its values."""

    kind: tuple[Any, ...]
    place: tuple[str, Box, str]
    dtype: torch.dtype
    offset: list[int]
    starts: tuple[int, ...]
    """The indices of its first word."""

    words: tuple[int, ...] | None
    """The shape of its bits by words, where they begin and end as words of the whole do; else they are copied first."""


class DigestLayouts:
    """The layouts of a rank's parts, which are kept for its next digests; no tensors are.

    A part of the same name and offset, and of the kind that it had, has the same box, dtype and words; only its memory
    may be another. ``reading`` is for all parts together, while they are in the same memory.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, tuple[int, ...] | None], _PartLayout] = {}
        self.reading: DigestReading | None = None

    def of(self, name: str, piece: HeldPart, dtype: str | None) -> _PartLayout:
        """The layout of a part, after a cast to a dtype."""
        key, kind = (name, piece.offset), (dtype, *piece.kind)
        layout = self._parts.get(key)
        if layout is None or layout.kind != kind:
            layout = self._parts[key] = _part_layout(name, piece, dtype, kind)
        return layout


def _part_layout(name: str, piece: HeldPart, dtype: str | None, kind: tuple[Any, ...]) -> _PartLayout:
    computed, box = isinstance(piece, ComputedPart), piece.box
    held_as = piece.dtype if isinstance(piece, ComputedPart) else piece.tensor.dtype
    read_as: torch.dtype = held_as if dtype is None else getattr(torch, dtype)
    size, offset = min(read_as.itemsize, WORD_BYTES), [start for start, _ in box]
    starts = (*offset[:-1], offset[-1] * read_as.itemsize // WORD_BYTES) if offset else (0,)
    words = None
    if not computed and offset and held_as == read_as:
        last, lanes = piece.tensor.shape[-1], WORD_BYTES // size
        if piece.tensor.is_contiguous() and offset[-1] % lanes == 0 and last % lanes == 0:
            words = (*piece.tensor.shape[:-1], last * read_as.itemsize // WORD_BYTES)
    return _PartLayout(
        kind=kind,
        place=(name, box, str(read_as).removeprefix("torch.")),
        dtype=read_as,
        offset=offset,
        starts=starts,
        words=words,
    )


class BegunDigests:
    """The digests of pieces added one after another, in the dtypes of ``digests``."""

    def __init__(self, dtypes: Mapping[str, str] | None = None, layouts: DigestLayouts | None = None) -> None:
        self._dtypes, self._layouts = dtypes or {}, layouts or DigestLayouts()
        self._places: list[tuple[str, Box, str]] = []
        self._sums: dict[int, int] = {}
        self._on_devices = device_sums()

    def add(self, pieces: Iterable[tuple[str, HeldPart]], *, beside: bool = False) -> ReadGroup | None:
        """Read pieces: those on a host at once, those on a device asynchronously, slowly ``beside`` an exchange.

        Returns the launches that read them; None unless all are on a device and read where they are.
        """
        first, in_place = len(self._places), True
        with torch.no_grad():
            for name, piece in pieces:
                layout, tensor = self._layouts.of(name, piece, self._dtypes.get(name)), piece.tensor
                index = len(self._places)
                self._places.append(layout.place)
                if not tensor.numel():
                    self._sums[index] = 0
                elif layout.words is not None and not tensor.storage_offset() * tensor.element_size() % WORD_BYTES:
                    self._begin(index, tensor, layout.words, layout.starts)
                else:
                    words, in_place = as_words(tensor.to(layout.dtype), layout.offset), False
                    self._begin(index, words, words.shape, layout.starts)
            launches = self._on_devices.launch(first, beside=beside)
        places = self._places[first:]
        on_devices = sum(len(launch.indices) for launch in launches)
        return ReadGroup(places, launches) if in_place and on_devices == len(places) else None

    def _begin(self, index: int, part: torch.Tensor, shape: Sequence[int], starts: tuple[int, ...]) -> None:
        """Read the bits of a contiguous part by words, i64[shape]."""
        if part.device.type == "cpu":
            self._sums[index] = host_digest(part.view(-1).view(torch.int64).view(*shape), starts)
        else:
            self._on_devices.add(index, part, shape, starts)

    def values(self) -> DigestValues:
        """The digests of all pieces, in order; waits once for each device."""
        with torch.no_grad():
            sums = self._sums | self._on_devices.digests()
        return DigestValues(tuple(self._places), [sums[index] % MODULUS for index in range(len(self._places))])

    def digests(self) -> Digests:
        """As ``values``."""
        return self.values().digests()


def host_digest(words: torch.Tensor, starts: Sequence[int]) -> int:
    """The digest of a part from words on the host, whose indices begin at ``starts``."""
    rows, columns = _both_sums(words.view(-1, words.shape[-1]).numpy())
    total = int(np.dot(columns, factors(starts[-1], len(columns), last=True)))
    sums = rows.reshape(words.shape[:-1])
    for dim in range(sums.ndim):
        along = sums.sum(axis=tuple(axis for axis in range(sums.ndim) if axis != dim))
        total += int(np.dot(along, factors(starts[dim], len(along), dim)))
    return total


def device_sums() -> DeviceSums | FusedSums:
    """The digests of parts on devices: one kernel where Triton compiles it, torch kernels elsewhere."""
    if not (torch.cuda.is_available() and find_spec("triton")):
        return DeviceSums()
    from hfdsl.runtime.verification.fused_digests import FusedSums

    return FusedSums()


class DeviceSums:
    """The digests of parts on a device without Triton, where launching a kernel takes as long as reading megabytes.

    So a part is read by two kernels, for the sums of its rows and of its columns. Factors come in for all parts of a
    shape at once, and the numbers leave the device together.
    """

    def __init__(self) -> None:
        self._alike: dict[tuple[torch.device, tuple[int, ...], torch.Size], dict[int, list[torch.Tensor]]] = {}

    def add(self, index: int, part: torch.Tensor, shape: Sequence[int], starts: tuple[int, ...]) -> None:
        """Sum the bits of a contiguous part by words, i64[shape], whose indices begin at ``starts``."""
        words = part.view(-1).view(torch.int64).view(*shape)
        outer = list(range(words.dim() - 1))
        sums = [words.sum(outer) if outer else words]
        rows = words.sum(-1) if outer else words
        for dim in outer:
            others = [axis for axis in outer if axis != dim]
            sums.append(rows.sum(others) if others else rows)
        self._alike.setdefault((words.device, starts, words.shape), {})[index] = sums

    def launch(self, first: int = 0, *, beside: bool = False) -> Sequence[KernelLaunch]:
        """Do nothing, since ``add`` has launched the kernels."""
        return ()

    def digests(self) -> dict[int, int]:
        """The digests by index; waits once for each device."""
        numbers: dict[torch.device, tuple[list[int], list[torch.Tensor]]] = {}
        for (device, starts, _), parts in self._alike.items():
            total = torch.zeros(len(parts), dtype=torch.int64, device=device)
            for number, sums in enumerate(zip(*parts.values(), strict=True)):
                dim, last = (len(starts) - 1, True) if number == 0 else (number - 1, False)
                along = torch.stack(sums)
                multipliers = factors_on(device, starts[dim], along.shape[1], 0 if last else dim, last=last)
                total += (along * multipliers).sum(1)
            indices, totals = numbers.setdefault(device, ([], []))
            indices += parts
            totals.append(total)
        return {
            index: value
            for indices, totals in numbers.values()
            for index, value in zip(indices, torch.cat(totals).tolist(), strict=True)
        }


def as_words(tensor: torch.Tensor, offset: Sequence[int]) -> torch.Tensor:
    """The bits of a part as words, i64[..., W], aligned with the words of the whole."""
    lanes = WORD_BYTES // min(tensor.element_size(), WORD_BYTES)
    flat = tensor.reshape(1) if not tensor.dim() else tensor
    first, size = offset[-1] % lanes if offset else 0, flat.shape[-1]
    room = -(-(first + size) // lanes) * lanes
    if room != size:
        padded = flat.new_zeros((*flat.shape[:-1], room))
        padded[..., first : first + size] = flat
        flat = padded
    flat = flat.contiguous()
    if flat.storage_offset() * flat.element_size() % WORD_BYTES:
        flat = flat.clone()  # torch views no words that begin elsewhere
    if 1 in flat.shape:  # torch counts a dim of one element as contiguous, whatever its stride, but views none as words
        return flat.view(-1).view(torch.int64).view(*flat.shape[:-1], -1)
    return flat.view(torch.int64)


def _both_sums(words: Words) -> tuple[Words, Words]:
    """The sums of all rows and all columns of words i64[N, W]."""
    rows, columns = np.empty(len(words), np.int64), np.zeros(words.shape[1], np.int64)
    step = max(1, BLOCK_WORDS // words.shape[1])
    for start in range(0, len(words), step):
        block = words[start : start + step]
        block.sum(axis=1, out=rows[start : start + step])
        columns += block.sum(axis=0)
    return rows, columns
