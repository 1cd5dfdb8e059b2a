"""Blocks of other processes' memory that are mapped here, and stay mapped while their readers come back for them.

CUDA takes 2 ms a GiB to map a block, and 3 ms to copy it from another GPU, so a mapping is worth keeping. It must not

- let anybody read memory that its maker has freed. A block is known by its maker and by the number that CUDA gives an
  allocation, which is never given twice in a process; what has the same address or handle is not the same block. And a
  block that lies where another one lies now was freed: it is unmapped before that one is mapped.
- keep memory from being given back for long. What a maker has freed is not free before its readers have unmapped it, so
  a block stays for a few transfers only, and not at all in runs whose roles give memory back on purpose.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

TRANSFERS: Final = 8
"""A block is unmapped when so many transfers in a row from its maker have done without it."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a process has allocated at once, for as long as it has it; ``handle`` is what others map it by."""

    maker: str
    number: int
    start: int
    size: int
    handle: bytes

    def meets(self, other: Block) -> bool:
        """Whether they lie in the same place, so that at most one of them is there."""
        apart = self.start + self.size <= other.start or other.start + other.size <= self.start
        return self.maker == other.maker and self.number != other.number and not apart


class Mappings:
    """The blocks that are mapped in this process. ``keep`` is whether they stay so after a transfer.

    ``map_`` gives the address of a block here, ``unmap`` ends what is at one. One transfer goes on at a time, so
    nobody unmaps what another thread reads: it has to be over, on the GPU too, when ``mapped`` is left.
    """

    def __init__(self, map_: Callable[[Block], int], unmap: Callable[[int], None]) -> None:
        self.keep = False
        self._map, self._unmap_at = map_, unmap
        self._alone = threading.Lock()
        self._addresses: dict[Block, int] = {}
        self._used: dict[Block, int] = {}
        self._transfers = Counter[str]()

    def __len__(self) -> int:
        return len(self._addresses)

    @contextmanager
    def mapped(self, blocks: Sequence[Block]) -> Iterator[dict[Block, int]]:
        """The addresses of the blocks of a transfer, within this context; nothing may use them after it.

        Raises:
            RuntimeError: where this process has no way to them, or the one that lends is gone.
        """
        with self._alone:
            wanted = dict.fromkeys(blocks)
            self._transfers.update({block.maker for block in wanted})
            self._unmap(old for old in self._addresses if old not in wanted and self._over(old, wanted))
            try:
                for block in wanted:
                    if block not in self._addresses:
                        self._addresses[block] = self._map(block)
                    self._used[block] = self._transfers[block.maker]
                yield {block: self._addresses[block] for block in wanted}
            except BaseException as error:
                try:
                    self._unmap(wanted)
                except RuntimeError as another:
                    error.add_note(str(another))
                raise
            if not self.keep:
                self._unmap(wanted)

    def _over(self, old: Block, wanted: Iterable[Block]) -> bool:
        unused = self._transfers[old.maker] - self._used[old]
        return unused >= TRANSFERS or any(old.meets(new) for new in wanted)

    def release(self) -> None:
        """Unmap everything."""
        with self._alone:
            self._unmap(self._addresses)

    def _unmap(self, blocks: Iterable[Block]) -> None:
        for block in [block for block in blocks if block in self._addresses]:
            address = self._addresses.pop(block)
            self._used.pop(block, None)
            self._unmap_at(address)
