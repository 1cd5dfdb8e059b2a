"""The memory that an exchange of changed words takes beside the weights and their copy (``runtime.weights.deltas``).

A worked example. A message of 1 MiB of weights has 2**19 words of 16 bits, which are 8 blocks. At most an eighth of
them, 65,536, are sent as changes, in 4 bytes each::

    a sender                         bytes          a reader                    bytes
    the message now, and as sent     2 * 2**20      the message as it has it    2**20
    two messages in transit          2 * 2**18      two messages in transit     2 * 2**20, if all words arrive
    where words of a window differ   2**19
    the places of those              8 * 65,536
                                     3.5 MiB                                    3 MiB

Why it is enough. A sender frees what it found in a window before the next one. A reader that gets changes has
two messages in transit of a quarter of their size, and 12 bytes for each word while it writes them: less than the two
messages of all words that it may get instead.
"""

from __future__ import annotations

from typing import Final, Literal

BLOCK_WORDS: Final = 2**16
"""The words of a block, within which a place has 16 bits."""

WINDOW_WORDS: Final = 2**24
"""The words of which changes are found at once; a multiple of a block. Each window costs a GPU a dozen launches."""

MOST_CHANGED: Final = 8
"""A message in which more than one word of so many has changed is sent whole."""


def blocks(size: int) -> int:
    """The blocks of a message of so many bytes.

    >>> [blocks(size) for size in (0, 16, 2 * BLOCK_WORDS, 2 * BLOCK_WORDS + 16)]
    [0, 1, 1, 2]
    """
    return -(-size // (2 * BLOCK_WORDS))


def delta_bytes(largest: int, side: Literal["exports", "loads"]) -> int:
    """The most bytes of an exchange on a rank of a side whose largest message has so many.

    >>> delta_bytes(2**20, "exports") / 2**20, delta_bytes(2**20, "loads") / 2**20
    (3.5, 3.0)
    """
    words = BLOCK_WORDS * blocks(largest)
    if side == "loads":
        return 3 * 2 * words
    window, changed = min(words, WINDOW_WORDS), words // MOST_CHANGED
    return 2 * 2 * words + 2 * 4 * changed + window + 8 * min(window, changed)
