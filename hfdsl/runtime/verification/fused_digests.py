"""Digests of all parts on a GPU, from a kernel that reads every word once.

An example
----------
The words of a part lie in a table of N rows, its outer dims, and W columns. With the factors r of rows (for a part of
more than two dims the sum of those of its outer dims) and c of columns, the digest of ``digests.py`` is::

    sum of words[i, k] * (r[i] + c[k])  modulo 2**64

since every word counts once in the sum of its row and once in that of its column. So no sums of rows or columns are
written: a program of the kernel reads tiles of words, multiplies, and adds a number for each to that of its part.
Addition modulo 2**64 is exact, so the order in which programs end does not matter. ::

    part      rows x columns    tiles of 8 x 512    first tile
    q_proj      4096 x 1024           1024               0
    norm           1 x 1024              2            1024      tiles 0 to 2050 of one launch
    k_proj      4096 x 1024           1024            1026

A model of 7B has 291 parameters, and a launch for each would take longer than to read it: parts whose tiles have one
shape share a launch, in which a program looks up the part of a tile by bisection. So all parts that are added together
are read once, by a launch for each shape of tiles: one for most models. The table of a launch is on the device, and the
next sync uses it again while all parts are where they were (``digest_stream``).

A launch has a program for each tile and reads as fast as the memory allows, or few programs that read one tile after
another, which leaves memory bandwidth to an exchange beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final

import torch
import triton  # pyright: ignore[reportMissingImports] - torch brings it where it supports CUDA
import triton.language as tl  # pyright: ignore[reportMissingImports]

from hfdsl.runtime.verification.digest_factors import factors_on

TILE_WORDS: Final = 4096
"""The number of words that a program reads at once: 32 KiB."""

PROGRAMS_BESIDE: Final = 64
"""The programs of a launch beside an exchange of weights: enough to read about twice as fast as a link delivers."""

MAX_BLOCK_COLUMNS: Final = 512
"""The most columns that a program reads at once: few enough that all weights of a Llama in bfloat16 have one tile."""

FIELDS: Final = tl.constexpr(6)
"""The fields of a part in the kernel's table: first tile, addresses of words and both factors, rows and columns."""


# Triton compiles the body, and reads annotations.
def _add_words(  # type: ignore[no-untyped-def]
    parts, count, tiles, totals, steps: tl.constexpr, block_rows: tl.constexpr, block_columns: tl.constexpr
):
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        part, behind = 0, count
        for _ in range(steps):
            middle = (part + behind) // 2
            begins = tl.load(parts + middle * FIELDS) <= tile
            part, behind = tl.where(begins, middle, part), tl.where(begins, behind, middle)
        entry = parts + part * FIELDS
        words = tl.load(entry + 1).to(tl.pointer_type(tl.int64))
        row_factors = tl.load(entry + 2).to(tl.pointer_type(tl.int64))
        column_factors = tl.load(entry + 3).to(tl.pointer_type(tl.int64))
        height, width = tl.load(entry + 4), tl.load(entry + 5)
        within = tile - tl.load(entry)
        across = (width + block_columns - 1) // block_columns
        rows = within // across * block_rows + tl.arange(0, block_rows)
        columns = within % across * block_columns + tl.arange(0, block_columns)
        inside = (rows < height)[:, None] & (columns < width)[None, :]
        values = tl.load(words + rows[:, None] * width + columns[None, :], mask=inside, other=0)
        factors = tl.load(row_factors + rows, mask=rows < height, other=0)[:, None]
        factors += tl.load(column_factors + columns, mask=columns < width, other=0)[None, :]
        tl.atomic_add(totals + part, tl.sum(tl.sum(values * factors, 1), 0), sem="relaxed")


_kernel: Any = triton.jit(do_not_specialize=["count", "tiles"])(_add_words)  # a launch is not typed as the kernel is

STEP_GRAIN: Final = 4
"""The granularity of bisection steps, so that a few compiled kernels serve any number of parts."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part whose words form a table: contiguous memory, by words i64[shape], whose indices begin at ``starts``."""

    index: int
    memory: torch.Tensor
    shape: tuple[int, ...]
    starts: tuple[int, ...]


@lru_cache(maxsize=256)
def _tile(columns: int) -> tuple[int, int]:
    """The rows and columns that a program reads at once of a part with so many columns."""
    width = min(1 << (columns - 1).bit_length(), MAX_BLOCK_COLUMNS)
    return TILE_WORDS // width, width


class FusedSums:
    """Digests of parts on GPUs."""

    def __init__(self) -> None:
        self._alike: dict[tuple[torch.device, tuple[int, int]], list[_Part]] = {}
        self._memory: list[torch.Tensor] = []
        self._launched: list[
            tuple[KernelLaunch, int, torch.Tensor]
        ] = []  # each with its first index, and digests i64[parts]

    def add(self, index: int, part: torch.Tensor, shape: Sequence[int], starts: tuple[int, ...]) -> None:
        """Add the bits of a contiguous part by words, i64[shape], whose indices begin at ``starts``."""
        self._alike.setdefault((part.device, _tile(shape[-1])), []).append(_Part(index, part, tuple(shape), starts))
        self._memory.append(part)

    def launch(self, first: int = 0, *, beside: bool = False) -> Sequence[KernelLaunch]:
        """Launch the kernel for all added parts, which stay until ``digests``: the stream reads them later.

        ``beside`` an exchange of weights it has few programs. Returns the launches, whose indices count from a
        ``first``.
        """
        alike, self._alike = self._alike, {}
        launches = [KernelLaunch.of(*shared, parts, first) for shared, parts in alike.items()]
        for launch in launches:
            totals = torch.zeros(len(launch.indices), dtype=torch.int64, device=launch.device)
            launch.begin(totals, beside=beside)
            self._launched.append((launch, first, totals))
        return launches

    def digests(self) -> dict[int, int]:
        """The digests by index; waits once for each device."""
        on_device: dict[torch.device, tuple[list[int], list[torch.Tensor]]] = {}
        for launch, first, totals in self._launched:
            indices, numbers = on_device.setdefault(launch.device, ([], []))
            indices += [first + index for index in launch.indices]
            numbers.append(totals)
        values = {
            index: value
            for indices, numbers in on_device.values()
            for index, value in zip(indices, torch.cat(numbers).tolist(), strict=True)
        }
        self._launched, self._memory = [], []
        return values


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """The kernel's inputs for parts with tiles of one shape: their indices and addresses, without their memory."""

    device: torch.device
    tile: tuple[int, int]
    indices: Sequence[int]
    fields: torch.Tensor
    """One row for each part, i64[parts, FIELDS]."""

    tiles: int
    factors: Sequence[torch.Tensor]

    @classmethod
    def of(cls, device: torch.device, tile: tuple[int, int], parts: Sequence[_Part], first: int) -> KernelLaunch:
        """The launch for parts, whose indices count from a ``first``."""
        block_rows, block_columns = tile
        fields, tiles, factors = list[tuple[int, ...]](), 0, list[torch.Tensor]()
        for part in parts:
            rows, columns = prod(part.shape[:-1]), part.shape[-1]
            of_rows = _row_factors(device, part.starts[:-1], part.shape[:-1])
            of_columns = factors_on(device, part.starts[-1], columns, last=True)
            factors += (of_rows, of_columns)  # a cache that drops them must not free them before the kernel has run
            address = part.memory.data_ptr()
            fields.append((tiles, address, of_rows.data_ptr(), of_columns.data_ptr(), rows, columns))
            tiles += -(-rows // block_rows) * -(-columns // block_columns)
        table = torch.tensor(fields, dtype=torch.int64)
        if device.type == "cuda":
            table = table.pin_memory().to(device, non_blocking=True)
        return cls(device, tile, [part.index - first for part in parts], table, tiles, factors)

    def begin(self, totals: torch.Tensor, *, beside: bool) -> None:
        """Launch the kernel, which adds the digests to ``totals`` i64[parts]."""
        block_rows, block_columns = self.tile
        count, programs = len(self.indices), min(self.tiles, PROGRAMS_BESIDE) if beside else self.tiles
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            _kernel[(programs,)](
                self.fields,
                count,
                self.tiles,
                totals,
                steps=-(-count.bit_length() // STEP_GRAIN) * STEP_GRAIN,
                block_rows=block_rows,
                block_columns=block_columns,
            )


@lru_cache(maxsize=256)
def _row_factors(device: torch.device, starts: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """The factors of rows in the order of memory, i64[rows]: for each the sum over the outer dims."""
    sums = torch.zeros(shape, dtype=torch.int64, device=device)
    for dim, (start, size) in enumerate(zip(starts, shape, strict=True)):
        sums += factors_on(device, start, size, dim).view(-1, *(1,) * (len(shape) - dim - 1))
    return sums.view(-1)
