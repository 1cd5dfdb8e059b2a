"""The words of a message that have changed since it was sent: how many, where, and their values.

A worked example, with blocks of four words instead of 65,536::

    sent last            3 5 7 9   2 4 6 8   1 0 0 0      a message of ten words, and the rest of its last block
    now                  3 5 1 9   2 4 0 8   1 0 0 0
    changed by block     1         1         0
    places               2         2                      within their blocks, in 16 bits
    values               1         0

Every message is whole blocks in memory, and 0 behind its own words. Its reader has the counts by block beforehand, from
which it knows the size of what follows, and to which block a place belongs.

Changes are found a window at a time, since where words differ and their places take up to nine bytes per word.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hfdsl.plan.delta_memory import BLOCK_WORDS, WINDOW_WORDS


def changed_by_block(now: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The number of words in each block, i32[blocks], that differ between two contents i16[words] of a message.

    >>> now = torch.zeros(2 * BLOCK_WORDS, dtype=torch.int16)
    >>> now[BLOCK_WORDS + 4] = 7
    >>> changed_by_block(now, torch.zeros_like(now)).tolist()
    [0, 1]
    """
    counts = torch.empty(len(now) // BLOCK_WORDS, dtype=torch.int32, device=now.device)
    for start, words, then in _windows(now, last):
        differs = (words != then).view(-1, BLOCK_WORDS)
        first = start // BLOCK_WORDS
        counts[first : first + len(differs)] = differs.sum(1, dtype=torch.int32)
    return counts


def changed_words(now: torch.Tensor, last: torch.Tensor, count: int) -> torch.Tensor:
    """The places and the values i16[2 * count] of the words that differ, of which there are so many.

    >>> now = torch.zeros(2 * BLOCK_WORDS, dtype=torch.int16)
    >>> now[BLOCK_WORDS + 4] = 7
    >>> changed_words(now, torch.zeros_like(now), 1).tolist()
    [4, 7]
    """
    changes = torch.empty(2 * count, dtype=torch.int16, device=now.device)
    first = 0
    for _, words, then in _windows(now, last):
        places = (words != then).nonzero().view(-1)
        stop = first + len(places)
        changes[first:stop] = places  # its low 16 bits are the place in its block, above 32,767 as a negative number
        torch.index_select(words, 0, places, out=changes[count + first : count + stop])
        first = stop
    return changes


def write_changed(by_block: torch.Tensor, changes: torch.Tensor, content: torch.Tensor) -> None:
    """Write changed words into the content i16[words] of a message, which has all others.

    >>> content = torch.zeros(2 * BLOCK_WORDS, dtype=torch.int16)
    >>> write_changed(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([4, 7], dtype=torch.int16), content)
    >>> content.nonzero().tolist(), int(content[BLOCK_WORDS + 4])
    ([[65540]], 7)
    """
    places, values = changes.view(2, -1)
    positions = torch.repeat_interleave(by_block.long(), output_size=len(places))  # the block of each change
    positions.mul_(BLOCK_WORDS).add_(places.int().bitwise_and_(BLOCK_WORDS - 1))
    content[positions] = values


def _windows(now: torch.Tensor, last: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Both contents window by window, each with the index of its first word."""
    starts = range(0, len(now), WINDOW_WORDS)
    return zip(starts, now.split(WINDOW_WORDS), last.split(WINDOW_WORDS), strict=True)
