"""The exchange of a sync that sends only the elements that have changed (``Optimize.deltas``), for slow links.

A worked example. A trainer has sent a message of ten words of 16 bits, and has a copy of it; an engine has loaded it::

    sent last        3 5 7 9 2 4 6 8 1 0
    now              3 5 1 9 2 4 0 8 1 0       2 words have changed, those at 2 and 6

    engine           digest of its words                     to the trainer
    trainer          2, the number of changed words          to the engine
                     2 by block, places 2 6, words 1 0

A word takes 4 bytes: its place within a block of 65,536 words, and its new value. With the number of changed words of
each block, 2 % of changed words are 4 % of the bytes. Changes are found in eight bytes at a time, and then in the words
of those; if more than half of them have any, all words are sent. That is 16 % of the words if these are spread evenly.

Why it is right. *The bits are those of all words*: an engine has the words that have not changed, since its digest is
that of the trainer's copy. Neither side has to know which version the other one has. An engine that was restarted, has
loaded a checkpoint or missed a sync has other words and another digest, or the trainer has no copy, and all words are
sent. *Nobody waits forever*: digests go in the order of senders, and of the readers of each; then the messages go in
the order of ``exchange``, as two messages each. Every rank goes through its own in this order and waits for each, so of
all that have not arrived the first one does.

The copy is made once all has been sent, on the device of the weights, of the parts that this rank sends. A part that
goes to several readers is in it once. If the exchange fails there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch

from hfdsl.plan.resharding import WeightMessage
from hfdsl.protocols.boxes import Box
from hfdsl.runtime.digests import HeldPart, digests
from hfdsl.runtime.weights.messages import BufferedMessage, HeldParts, MessageTurns, pack, with_all_parts
from hfdsl.runtime.weights.operations import ExchangeGroup
from hfdsl.runtime.weights.resharding import LocalWeights

BLOCK: Final = 2**16
"""The words of a block, whose places have 16 bits."""

TOGETHER: Final = 4
"""The words that are compared at once."""

WINDOW: Final = 2**21
"""The words whose changes are found at once, which takes up to eight times their memory; a multiple of a block."""

ALL_WORDS: Final = -1
"""Instead of the number of changed words: the message has all of its words."""


# -- a message ---------------------------------------------------------------------------------------------------------


def changes(now: torch.Tensor, last: torch.Tensor) -> tuple[int, torch.Tensor]:
    """The changed words between two contents u8[8 * N] of a message: their number and its bytes, or all of ``now``.

    >>> now = torch.zeros(32, dtype=torch.uint8)
    >>> now[4] = 7
    >>> count, sent = changes(now, torch.zeros(32, dtype=torch.uint8))
    >>> count, sent.tolist()
    (1, [1, 0, 0, 0, 2, 0, 7, 0])
    """
    words, differs = _words(now), now.view(torch.int64) != last.view(torch.int64)
    if 2 * int(differs.count_nonzero()) > len(differs):
        return ALL_WORDS, now
    windows = zip(words.split(WINDOW), _words(last).split(WINDOW), differs.split(WINDOW // TOGETHER), strict=True)
    in_blocks, places, values = zip(*(_changes_of(*window) for window in windows), strict=True)
    sent = torch.cat([part.view(torch.uint8) for part in (*in_blocks, *places, *values)])
    return sum(map(len, places)), sent


def _changes_of(
    words: torch.Tensor, last: torch.Tensor, differs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The changed words of a window: their numbers by block, their places in these, and their values."""
    groups = differs.nonzero()
    changed = words.view(-1, TOGETHER)[groups[:, 0]] != last.view(-1, TOGETHER)[groups[:, 0]]
    places = (groups * TOGETHER + torch.arange(TOGETHER, device=words.device))[changed]
    in_blocks = torch.bincount(places // BLOCK, minlength=_blocks(len(words))).to(torch.int32)
    return in_blocks, (places % BLOCK).to(torch.int16), words[places]


def sent_bytes(count: int, size: int) -> int:
    """The bytes of a message of ``size`` bytes in which so many words have changed.

    >>> sent_bytes(1, 32)
    8
    """
    return 4 * (_blocks(size // 2) + count)


def apply(count: int, sent: torch.Tensor, content: torch.Tensor) -> None:
    """Write changed words into the content u8[8 * N] of a message, which has all others.

    >>> content = torch.zeros(32, dtype=torch.uint8)
    >>> apply(1, torch.tensor([1, 0, 0, 0, 2, 0, 7, 0], dtype=torch.uint8), content)
    >>> content[:6].tolist()
    [0, 0, 0, 0, 7, 0]
    """
    words = _words(content)
    blocks = _blocks(len(words))
    in_blocks, places, values = sent.split([4 * blocks, 2 * count, 2 * count])
    starts = torch.arange(0, blocks * BLOCK, BLOCK, device=sent.device)
    starts = starts.repeat_interleave(in_blocks.view(torch.int32), output_size=count)
    words[starts + _words(places).to(torch.int64) % BLOCK] = _words(values)  # a place above 32,767 is negative there


def _words(content: torch.Tensor) -> torch.Tensor:
    return content.view(torch.int16)


def _blocks(words: int) -> int:
    return -(-words // BLOCK)


def digest(content: torch.Tensor) -> int:
    """The digest of a message, as 64 bits with a sign."""
    [single] = digests([("", HeldPart(_words(content)))])
    return single.value - 2**64 if single.value >= 2**63 else single.value


# -- sending -----------------------------------------------------------------------------------------------------------


class SentParts:
    """A copy of the parts that a rank has sent last."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, Box], torch.Tensor] = {}

    def pack(self, message: BufferedMessage) -> bool:
        """Write the parts of a message into its buffer; whether all of them are there."""
        for at, part in message.parts.items():
            transfer = message.message.transfers[at]
            sent = self._parts.get((transfer.parameter.name, transfer.box))
            if sent is None:
                return False
            part.copy_(sent)
        return True

    def keep(self, sent: Iterable[WeightMessage], held: LocalWeights) -> None:
        """Copy the parts of messages, from where the rank still has them."""
        for message in sent:
            for transfer in message.transfers:
                key = transfer.parameter.name, transfer.box
                if key not in self._parts:
                    shape, dtype = [stop - start for start, stop in transfer.box], transfer.parameter.dtype
                    self._parts[key] = torch.empty(shape, dtype=getattr(torch, dtype), device=held.device)
                held.copy_into(self._parts[key], transfer.parameter, transfer.box)


def send_changes(group: ExchangeGroup, turns: MessageTurns, held: LocalWeights, device: str) -> None:
    """Take part in an exchange as a source that sends these messages."""
    kept, sent = group.sync.kept, [message for turn in turns for message in turn]
    last: SentParts = kept.pop(("sent", held.rank), None) or SentParts()
    known = _known_digests(group, sent, device)
    for number, message in enumerate(sent):
        content, now = with_all_parts(message, number, device)
        pack(now, held)
        count, parts = ALL_WORDS, content
        content_then, then = with_all_parts(message, number, device)
        if last.pack(then) and {digest(content_then)} == known[number]:
            count, parts = changes(content, content_then)
        for flat in (torch.tensor([count], device=device), parts):
            group.send(message, flat).wait()
    last.keep(sent, held)
    kept["sent", held.rank] = last


def _known_digests(group: ExchangeGroup, sent: Sequence[WeightMessage], device: str) -> Mapping[int, set[int]]:
    """The digests of each message that its readers have."""
    sync = group.sync
    targets = range(sync.schedule.target_mesh.world_size) if sync.broadcast else {message.target for message in sent}
    known: dict[int, set[int]] = {number: set() for number in range(len(sent))}
    for target in sorted(targets):
        numbers = [number for number, message in enumerate(sent) if sync.broadcast or message.target == target]
        values = torch.empty(len(numbers), dtype=torch.int64, device=device)
        group.receive_from_target(target, values).wait()
        for number, value in zip(numbers, values.tolist(), strict=True):
            known[number].add(value)
    return known


# -- receiving ---------------------------------------------------------------------------------------------------------


def receive_changes(
    group: ExchangeGroup, rank: int, device: str, held: HeldParts | None, write: Callable[[BufferedMessage], None]
) -> None:
    """Take part in an exchange as a target rank; if it does not say what it has ``held``, all words arrive."""
    expected = [message for turn in group.sync.schedule.messages_to(rank) for message in turn]
    values = [digest(_content(message, number, held, device)[0]) for number, message in enumerate(expected)]
    for source in sorted({message.source for message in expected}):
        own = [value for value, message in zip(values, expected, strict=True) if message.source == source]
        group.send_to_source(source, torch.tensor(own, device=device)).wait()
    for number, message in enumerate(expected):
        content, buffered = _content(message, number, held, device)
        count = torch.empty(1, dtype=torch.int64, device=device)
        group.receive(message, count).wait()
        if int(count) == ALL_WORDS:
            group.receive(message, content).wait()
        else:
            sent = torch.empty(sent_bytes(int(count), len(content)), dtype=torch.uint8, device=device)
            group.receive(message, sent).wait()
            apply(int(count), sent, content)
        write(buffered)


def _content(
    message: WeightMessage, number: int, held: HeldParts | None, device: str
) -> tuple[torch.Tensor, BufferedMessage]:
    """The content of a message as a rank has it."""
    content, buffered = with_all_parts(message, number, device)
    if held is not None:
        held.views.pack(buffered, held.held)
    return content, buffered
