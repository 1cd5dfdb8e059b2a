"""The exchange of a sync that sends only the elements that have changed (``Optimize.deltas``), for slow links.

A worked example. A trainer sent a message of ten words of 16 bits and has a copy of it; an engine has loaded it::

    sent last        3 5 7 9 2 4 6 8 1 0
    now              3 5 1 9 2 4 0 8 1 0       2 words have changed, those at 2 and 6

    engine           digests of its messages               to the trainer
    trainer          2, the changed words by block         to the engine, for all messages together
                     places 2 6, words 1 0                 a message

A changed word takes 4 bytes: its place within a block of 65,536 words, and its new value (``changed_words``). A message
in which more than an eighth of the words has changed is sent whole, and one without changes is not sent at all.

Why it is right. *The bits are those of all words*: an engine has the words that have not changed, since its digest is
that of the trainer's copy. Neither side has to know which version the other one has. An engine that was restarted, has
loaded a checkpoint or missed a sync has other words and another digest, or the trainer has no copy, and all words are
sent. *No rank waits forever*: first every reader sends its digests to its senders in order, and a sender receives those
of its readers in order; then the numbers of changed words go the other way, in the same orders; then the messages go in
the order of ``exchange``, those alone that have changes. Every rank goes through its own in this order, so of all that
have not arrived the first one does.

A GPU is waited for once for all messages, when the numbers of changed words are known, and once per window in which
changes are then found. Its memory is planned (``plan.delta_memory``). The copy is made once all has been sent, on the
device of the weights, of the parts that this rank sends. A part that goes to several readers is in it once. If the
exchange fails there is none.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import torch

from hfdsl.plan.delta_memory import BLOCK_WORDS, MOST_CHANGED, blocks
from hfdsl.plan.resharding import WeightMessage
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.boxes import Box
from hfdsl.runtime.copying import copy_all
from hfdsl.runtime.digests import BegunDigests
from hfdsl.runtime.weights.changed_words import changed_by_block, changed_words, write_changed
from hfdsl.runtime.weights.held_parts import HeldPart
from hfdsl.runtime.weights.local_weights import LocalWeights
from hfdsl.runtime.weights.messages import (
    AHEAD,
    BufferedMessage,
    HeldParts,
    MessageTurns,
    PartViews,
    WholeMessages,
    give_memory,
    kept_views,
    take_memory,
)
from hfdsl.runtime.weights.operations import ExchangeGroup

ALL_WORDS: Final = -1
"""Instead of the number of changed words in its first block: the message has all of its words."""

DIGEST_WORDS: Final = 2048
"""The words of a message that its digest reads as a row; they divide a block."""


# -- messages ----------------------------------------------------------------------------------------------------------


def _words(content: torch.Tensor) -> torch.Tensor:
    return content.view(torch.int16)


def _take(
    sync: ScheduledSync, use: str, rank: int, turns: MessageTurns, device: str, views: PartViews | None = None
) -> WholeMessages:
    """The messages of a rank, with memory."""
    return take_memory(
        sync, ("whole", use, rank), views, lambda: WholeMessages(turns, device, views, padded=2 * BLOCK_WORDS)
    )


def _give(sync: ScheduledSync, use: str, rank: int, whole: WholeMessages) -> None:
    """Free the memory, and keep the rest."""
    give_memory(sync, ("whole", use, rank), whole)


class MessageDigests:
    """The digests of messages, which are read one after another and waited for together."""

    def __init__(self) -> None:
        self._begun = BegunDigests()

    def add(self, content: torch.Tensor) -> None:
        """Read the content of a message, whose memory the next one may use."""
        read = content if content.is_cuda else content.clone()  # an array of a tensor fixes the size of its memory
        self._begun.add([("", HeldPart(_words(read).view(-1, DIGEST_WORDS)))])

    def values(self) -> list[int]:
        """The digests in order, as 64 bits with a sign."""
        return [value - 2**64 if value >= 2**63 else value for value in self._begun.values().values]


def _counts(by_block: Sequence[torch.Tensor]) -> list[int]:
    """The number of changed words of each message, or ``ALL_WORDS``; waits once."""
    if not by_block:
        return []
    on_host = torch.cat([*by_block]).cpu().split([*map(len, by_block)])
    return [ALL_WORDS if ALL_WORDS in counts[:1] else int(counts.sum()) for counts in on_host]


# -- sending -----------------------------------------------------------------------------------------------------------


class SentParts:
    """A copy of the parts that a rank sent last."""

    def __init__(self, whole: WholeMessages) -> None:
        self._parts: dict[tuple[str, Box], torch.Tensor] = {}
        self._by_message: list[Mapping[int, torch.Tensor]] = []
        self._new: list[Mapping[int, torch.Tensor]] = []  # those that no message before it has
        for message in whole.messages:
            transfers = enumerate(message.message.transfers)
            keys = {at: (transfer.parameter.name, transfer.box) for at, transfer in transfers}
            new = {at: torch.empty_like(message.parts[at]) for at, key in keys.items() if key not in self._parts}
            self._parts |= {keys[at]: part for at, part in new.items()}
            self._by_message.append({at: self._parts[key] for at, key in keys.items()})
            self._new.append(new)

    def pack(self, message: BufferedMessage) -> None:
        """Write the parts of a message into its buffer."""
        parts = self._by_message[message.number]
        copy_all([*message.parts.values()], [parts[at] for at in message.parts])

    def keep(self, whole: WholeMessages, views: PartViews, held: LocalWeights) -> None:
        """Copy the parts of all messages from where the rank has them."""
        for message, parts in zip(whole.messages, self._new, strict=True):
            views.pack(replace(message, parts=parts, copies=None), held)


class ChangedMessages:
    """The messages of a source as they are now, and as it sent them last."""

    def __init__(self, sync: ScheduledSync, turns: MessageTurns, held: LocalWeights, device: str) -> None:
        self.sync, self.held, self.device = sync, held, device
        self.views = kept_views(sync, "exports", held, turns)
        self.now = _take(sync, "exports", held.rank, turns, device, self.views)
        self.then = _take(sync, "sent", held.rank, turns, device)
        self.last: SentParts | None = sync.kept.pop(("sent parts", held.rank), None)

    def content(self, number: int) -> torch.Tensor:
        """A message as it is now."""
        content, message = self.now.cleared(number)
        self.views.pack(message, self.held)
        return content

    def content_then(self, number: int, last: SentParts) -> torch.Tensor:
        """A message as it was sent last."""
        content, message = self.then.cleared(number)
        last.pack(message)
        return content

    def compared(self) -> tuple[list[torch.Tensor], list[int | None]]:
        """The changed words of each message by block, and its digest as it was sent last; without a copy neither."""
        counts = [*map(blocks, self.now.sizes)]
        by_block = [*torch.full((sum(counts),), ALL_WORDS, dtype=torch.int32, device=self.device).split(counts)]
        if self.last is None:
            return by_block, [None] * len(by_block)
        digests = MessageDigests()
        for number, changed in enumerate(by_block):
            then = self.content_then(number, self.last)
            digests.add(then)
            changed.copy_(changed_by_block(_words(self.content(number)), _words(then)))
        return by_block, [*digests.values()]

    def sent(self, number: int, count: int) -> torch.Tensor:
        """The bytes of a message's changed words, of which there are so many, or of all of its words."""
        content = self.content(number)
        if count == ALL_WORDS or self.last is None:
            return content[: self.now.sizes[number]]
        return changed_words(_words(content), _words(self.content_then(number, self.last)), count).view(torch.uint8)

    def keep(self) -> None:
        """Copy what has been sent, and free all other memory."""
        last = self.last or SentParts(self.now)
        last.keep(self.now, self.views, self.held)
        self.sync.kept["sent parts", self.held.rank] = last
        _give(self.sync, "exports", self.held.rank, self.now)
        _give(self.sync, "sent", self.held.rank, self.then)


def send_changes(group: ExchangeGroup, turns: MessageTurns, held: LocalWeights, device: str) -> None:
    """Take part in an exchange as a source that sends these messages."""
    outgoing = ChangedMessages(group.sync, turns, held, device)
    messages = [message for turn in turns for message in turn]
    by_block, digests = outgoing.compared()
    numbers_of = _readers(group.sync, messages)
    reader_digests = _reader_digests(group, numbers_of, device)
    counts = _counts(by_block)
    for number, count in enumerate(counts):
        too_many = MOST_CHANGED * count > BLOCK_WORDS * len(by_block[number])
        if too_many or any(value != digests[number] for value in reader_digests[number]):
            counts[number] = ALL_WORDS
            by_block[number].fill_(ALL_WORDS)
    headers = [range(len(messages))] if group.sync.broadcast else numbers_of.values()
    for numbers in headers:
        group.send(messages[numbers[0]], torch.cat([by_block[number] for number in numbers])).wait()
    leaving = deque[tuple[Any, torch.Tensor]]()
    for number, message in enumerate(messages):
        if counts[number]:
            if len(leaving) == AHEAD:
                leaving.popleft()[0].wait()
            sent = outgoing.sent(number, counts[number])
            leaving.append((group.send(message, sent), sent))
            if counts[number] == ALL_WORDS:  # it is in the memory of the next message
                leaving.pop()[0].wait()
    for work, _ in leaving:
        work.wait()
    outgoing.keep()


def _readers(sync: ScheduledSync, messages: Sequence[WeightMessage]) -> Mapping[int, Sequence[int]]:
    """The numbers of the messages that each target rank gets, in order of ranks."""
    targets = range(sync.schedule.target_mesh.world_size) if sync.broadcast else {sent.target for sent in messages}
    return {
        target: [number for number, sent in enumerate(messages) if sync.broadcast or sent.target == target]
        for target in sorted(targets)
    }


def _reader_digests(
    group: ExchangeGroup, numbers_of: Mapping[int, Sequence[int]], device: str
) -> Mapping[int, Sequence[int]]:
    """The digests of each message that its readers have."""
    digests = defaultdict[int, list[int]](list)
    for target, numbers in numbers_of.items():
        values = torch.empty(len(numbers), dtype=torch.int64, device=device)
        group.receive_from_target(target, values).wait()
        for number, value in zip(numbers, values.tolist(), strict=True):
            digests[number].append(value)
    return digests


# -- receiving ---------------------------------------------------------------------------------------------------------


class HeldMessages:
    """The messages of a target rank as it has them; zeros if it does not say what it has ``held``."""

    def __init__(
        self, sync: ScheduledSync, rank: int, turns: MessageTurns, device: str, held: HeldParts | None
    ) -> None:
        self.sync, self.rank, self._held = sync, rank, held
        self._whole = _take(sync, "loads", rank, turns, device, None if held is None else held.views)
        self.sizes = self._whole.sizes

    def packed(self, number: int) -> tuple[torch.Tensor, BufferedMessage]:
        """The bytes of a message, and the message that has them."""
        content, message = self._whole.cleared(number)
        if self._held is not None:
            self._held.views.pack(message, self._held.held)
        return content, message

    def digests(self) -> Sequence[int]:
        """The digest of each message."""
        digests = MessageDigests()
        for number in range(len(self.sizes)):
            digests.add(self.packed(number)[0])
        return digests.values()

    def free(self) -> None:
        """Free the memory of messages."""
        _give(self.sync, "loads", self.rank, self._whole)


def receive_changes(
    group: ExchangeGroup, rank: int, device: str, held: HeldParts | None, write: Callable[[BufferedMessage], None]
) -> None:
    """Take part in an exchange as a target rank; if it does not say what it has ``held``, it has zeros."""
    turns = group.sync.schedule.messages_to(rank)
    messages = [message for turn in turns for message in turn]
    present = HeldMessages(group.sync, rank, turns, device, held)
    by_block = _agreed(group, messages, present.digests(), present.sizes, device)
    counts, arriving = _counts(by_block), deque[tuple[Any, torch.Tensor]]()
    expected = iter([number for number, count in enumerate(counts) if count])

    def expect(number: int) -> None:
        size = present.sizes[number] if counts[number] == ALL_WORDS else 4 * counts[number]
        flat = torch.empty(size, dtype=torch.uint8, device=device)
        arriving.append((group.receive(messages[number], flat), flat))

    for number in islice(expected, AHEAD):
        expect(number)
    for number, count in enumerate(counts):
        content, message = present.packed(number)
        if count:
            work, flat = arriving.popleft()
            work.wait()
            if count == ALL_WORDS:
                content[: len(flat)] = flat
            else:
                write_changed(by_block[number], _words(flat), _words(content))
            del flat  # before the memory of the next
            for later in islice(expected, 1):
                expect(later)
        write(message)
    if device == "cuda":
        torch.cuda.current_stream().synchronize()  # what has been submitted may wait for a sender that is lost
    present.free()


def _agreed(
    group: ExchangeGroup, messages: Sequence[WeightMessage], digests: Sequence[int], sizes: Sequence[int], device: str
) -> list[torch.Tensor]:
    """Send the digests of a rank's messages to their sources, and receive the changed words of each by block."""
    numbers_of: dict[int, list[int]] = {source: [] for source in sorted({message.source for message in messages})}
    for number, message in enumerate(messages):
        numbers_of[message.source].append(number)
    for source, numbers in numbers_of.items():
        group.send_to_source(source, torch.tensor([digests[number] for number in numbers], device=device)).wait()
    by_block = dict[int, torch.Tensor]()
    for numbers in numbers_of.values():
        counts = [blocks(sizes[number]) for number in numbers]
        header = torch.empty(sum(counts), dtype=torch.int32, device=device)
        group.receive(messages[numbers[0]], header).wait()
        by_block |= zip(numbers, header.split(counts), strict=True)
    return [by_block[number] for number in range(len(messages))]
