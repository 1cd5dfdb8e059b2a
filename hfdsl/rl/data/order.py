"""The order of rows: another shuffle in each epoch, computed at any position without those before it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

ROUNDS = 6
"""The rounds of the Feistel network."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a run in its data.

    >>> Cursor(seed=7).moved(10, 4)
    Cursor(seed=7, epoch=2, position=2, skipped=0, held_out=0)
    """

    seed: int
    """The seed of all shuffles."""

    epoch: int = 0
    position: int = 0
    """The position of the next row in the epoch's order."""

    skipped: int = 0
    """The number of bad rows skipped so far."""

    held_out: int = 0
    """The number of rows skipped so far because evaluation has them."""

    def moved(self, rows: int, size: int) -> Cursor:
        """The cursor ``rows`` further on, in epochs of ``size`` rows."""
        epochs, position = divmod(self.position + rows, size)
        return replace(self, epoch=self.epoch + epochs, position=position)

    def row(self, size: int) -> int:
        """The index of the next of ``size`` rows."""
        return shuffled(self.position, size, f"{self.seed}:{self.epoch}")


def shuffled(index: int, size: int, key: str) -> int:
    """The ``index``-th of the numbers below ``size`` in the order of ``key``; each number comes once.

    A Feistel network permutes the numbers below the smallest power of 4 that is at least ``size``, and is applied until
    the result is below ``size`` (cycle walking: Black and Rogaway, 2002, Ciphers with Arbitrary Finite Domains). It
    needs no memory, so a source may have any number of rows, and no library's random numbers, so no version of one
    changes the order.

    >>> [shuffled(i, 6, "0") for i in range(6)]
    [3, 0, 4, 5, 2, 1]
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for round_number in range(ROUNDS):
            text = f"{key}:{round_number}:{right}".encode()
            left, right = right, left ^ (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") & mask)
        index = left << half | right
        if index < size:
            return index
