"""Digests of weights that do not depend on how ranks hold them: those of disjoint parts add up to that of the whole.

An example
----------
A weight x of 2 rows and 2 columns, whose rows have the factors 3 and 5 and whose columns 7 and 11 (the true ones are
64 bits, from a mixing function of the index)::

    x = [[1, 2],        rows:     (1 + 2) 3 + (4 + 6) 5  =  59
         [4, 6]]        columns:  (1 + 4) 7 + (2 + 6) 11 = 123        digest 182

    sliced by rows      rank 0:   3*3  + 1*7 + 2*11 =  38
                        rank 1:   10*5 + 4*7 + 6*11 = 144             38 + 144 = 182
    sliced by columns   rank 0:   1*3 + 4*5 + 5*7   =  58
                        rank 1:   2*3 + 6*5 + 8*11  = 124             58 + 124 = 182

Elements are the integers that their bits are, and all sums are modulo 2**64, so a digest is exact and independent of
order. A part counts its factors from where it lies in the whole. A weight that differs in an element has another
digest, and so has one whose rows or columns are swapped; two that differ at random have the same one in 1 of 2**64
cases. A sum reads its tensor once for each dim, on whatever device it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from hfdsl.protocols.boxes import Box

MODULUS: Final = 2**64
INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers by whose bits elements are read, by their bytes."""


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part of a weight: its elements, and where in the whole the first of them is; None for all of a weight."""

    tensor: torch.Tensor
    offset: tuple[int, ...] | None = None

    @property
    def box(self) -> Box:
        """The part of the whole."""
        starts = self.offset or (0,) * self.tensor.dim()
        return tuple((start, start + size) for start, size in zip(starts, self.tensor.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a part of a weight."""

    name: str
    box: Box
    dtype: str
    value: int


Digests: TypeAlias = tuple[Digest, ...]
"""Those of all that a rank holds."""


def digests(pieces: Iterable[tuple[str, HeldPart]], dtypes: Mapping[str, str] | None = None) -> Digests:
    """The digests of pieces by name; of a weight that ``dtypes`` lists, after a cast to that dtype.

    >>> [digest.value for digest in digests([("x", HeldPart(torch.zeros(2, 2)))])]
    [0]
    """
    places, sums = list[tuple[str, Box, str]](), list[torch.Tensor]()
    with torch.no_grad():
        for name, piece in pieces:
            dtype = getattr(torch, dtypes[name]) if dtypes and name in dtypes else piece.tensor.dtype
            tensor = piece.tensor.detach().to(dtype)
            places.append((name, piece.box, str(dtype).removeprefix("torch.")))
            sums.append(_digest(tensor, [start for start, _ in piece.box]))
    return tuple(Digest(*place, value % MODULUS) for place, value in zip(places, _fetched(sums), strict=True))


def _fetched(sums: Sequence[torch.Tensor]) -> list[int]:
    """The numbers, with one wait for each device."""
    values: dict[int, int] = {}
    for device in {total.device for total in sums}:
        indices = [index for index, total in enumerate(sums) if total.device == device]
        values |= zip(indices, torch.stack([sums[index] for index in indices]).tolist(), strict=True)
    return [values[index] for index in range(len(sums))]


def _digest(tensor: torch.Tensor, offset: Sequence[int]) -> torch.Tensor:
    """The digest of a part that begins at ``offset``, i64[]."""
    bits = tensor.reshape(1) if not tensor.dim() else tensor
    bits = bits.contiguous().view(INTEGERS[bits.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for dim, start in enumerate(offset or [0]):
        others = [other for other in range(bits.dim()) if other != dim]
        sums = _sums(bits, others) if others else bits.long()
        total += (sums * _factors(dim, start, len(sums), bits.device)).sum()
    return total


def _sums(bits: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The sums of integers over dims, i64; on a CPU by NumPy, which is five to ten times as fast."""
    if bits.device.type == "cpu":
        sums: torch.Tensor = torch.from_numpy(bits.numpy().sum(axis=tuple(dims), dtype="int64"))
        return sums
    return torch.sum(bits, list(dims), dtype=torch.int64)


def _factors(dim: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """The factors of indices of a dim: the finalizer of splitmix64 (Steele et al., 2014), which has no short period."""
    mixed = torch.arange(start + 1, start + count + 1, device=device) * _signed(0x9E3779B97F4A7C15) + (dim << 58)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return (mixed ^ ((mixed >> 31) & ((1 << 33) - 1))) | 1


def _signed(number: int) -> int:
    return number - MODULUS if number >= MODULUS // 2 else number


def pieces_of(value: Any) -> dict[str, HeldPart] | None:
    """What a role gives as its weights, a mapping of names to tensors, numbers or pieces; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    pieces: dict[str, HeldPart] = {}
    for name, part in value.items():
        if isinstance(part, HeldPart):
            pieces[str(name)] = part
        elif isinstance(part, torch.Tensor):
            pieces[str(name)] = HeldPart(part)
        elif isinstance(part, (bool, int, float)):
            pieces[str(name)] = HeldPart(torch.tensor(part))
        else:
            return None
    return pieces
