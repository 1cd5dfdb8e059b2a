"""The order of rows: shuffled anew every epoch, and known at any place without a list of what came before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run is in its data: the next row is the ``position``-th of its ``epoch``, in the order of ``seed``.

    ``skipped`` and ``held_out`` count the rows that were passed over so far: bad ones, and those that are evaluated on.

    >>> Cursor(seed=7).moved(10, 4)
    Cursor(seed=7, epoch=2, position=2, skipped=0, held_out=0)
    """

    seed: int
    epoch: int = 0
    position: int = 0
    skipped: int = 0
    held_out: int = 0

    def moved(self, rows: int, size: int) -> Cursor:
        """The cursor ``rows`` further on, in epochs of ``size`` rows."""
        epochs, position = divmod(self.position + rows, size)
        return replace(self, epoch=self.epoch + epochs, position=position)

    def row(self, size: int) -> int:
        """Which of ``size`` rows is next."""
        return shuffled(self.position, size, f"{self.seed}:{self.epoch}")


def shuffled(index: int, size: int, key: str) -> int:
    """The ``index``-th of ``size`` numbers in the order of ``key``; every number comes once.

    A Feistel network over the smallest square of a power of two that holds ``size``, walked on until it is back among
    them (Black and Rogaway, 2002, Ciphers with Arbitrary Finite Domains). It needs no memory, so that a source may have
    any number of rows, and it depends on no library's random numbers.

    >>> [shuffled(i, 6, "0") for i in range(6)]
    [3, 0, 4, 5, 2, 1]
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(ROUNDS):
            text = f"{key}:{turn}:{right}".encode()
            left, right = right, left ^ (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") & mask)
        index = left << half | right
        if index < size:
            return index
