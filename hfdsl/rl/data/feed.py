"""The feed of a run: the batch at a cursor, and the cursor after it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

from hfdsl.errors import DataError
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Encoded, Encoder
from hfdsl.rl.data.sources import Rows

if TYPE_CHECKING:
    from hfdsl.rl.batches import Pairs, Prompts, Sequences

    NextBatch: TypeAlias = tuple[Prompts | Sequences | Pairs, Cursor]
    """A batch, and the cursor after it."""

OnBad: TypeAlias = Literal["raise", "skip"]
"""Whether a bad row ends the run or is skipped and counted."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Batches of the rows of a source."""

    rows: Rows
    """The source."""

    encoder: Encoder
    """The encoder from rows to batches."""

    count: int
    """The rows of the source in a batch."""

    on_bad: OnBad = "raise"
    """The policy for a bad row."""

    held_out: frozenset[str] = field(default_factory=frozenset)
    """The texts of prompts that training skips, because evaluation has them."""

    def take(self, cursor: Cursor) -> NextBatch:
        """The batch at a cursor and the cursor after it; the same cursor gives the same batch.

        Raises:
            DataError: HF902, HF903 for a bad row with ``on_bad="raise"``; HF902 if a whole epoch has no usable row.
        """
        size, consecutive_skips = len(self.rows), 0
        rows: list[Encoded] = []
        while len(rows) < self.count:
            # Two epochs, since the only good row may be first in one and last in the next.
            if consecutive_skips == 2 * size:
                raise DataError("HF902", f"none of the {size} rows can be taken: all are bad or held out")
            index = cursor.row(size)
            cursor = cursor.moved(1, size)
            row = self._row(index)
            if isinstance(row, str):
                cursor = replace(cursor, **{row: getattr(cursor, row) + 1})
                consecutive_skips += 1
            else:
                rows.append(row)
                consecutive_skips = 0
        return self.encoder.batch(rows), cursor

    def first(self) -> tuple[Prompts | Sequences | Pairs, frozenset[str]]:
        """The first rows in their own order, for an evaluation, and their texts.

        Raises:
            DataError: HF902, HF903 for a bad row with ``on_bad="raise"``; HF902 if there are too few rows.
        """
        good = list(islice(self._good(), self.count))
        if len(good) < self.count:
            raise DataError("HF902", f"an evaluation of {self.count} prompts has only {len(good)} rows to take")
        return self.encoder.batch(good), frozenset(self.encoder.text(encoded.row, "") for encoded in good)

    def _good(self) -> Iterator[Encoded]:
        for index in range(len(self.rows)):
            row = self._row(index)
            if not isinstance(row, str):
                yield row

    def _row(self, index: int) -> Encoded | Literal["skipped", "held_out"]:
        place = self.rows.place(index)
        try:
            row = self.rows.row(index)
            if self.held_out and self.encoder.text(row, place) in self.held_out:
                return "held_out"
            return self.encoder.encoded(row, place)
        except DataError:
            if self.on_bad == "skip":
                return "skipped"
            raise


class Prefetcher:
    """A feed whose thread prepares each batch while the step before it runs, until the context ends.

    An error in a batch is raised when the batch is taken, and never if no step takes it.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._prepared: dict[Cursor, Future[NextBatch]] = {}
        self._thread = ThreadPoolExecutor(1, "hfdsl-feed")

    def take(self, cursor: Cursor) -> NextBatch:
        """The batch at a cursor and the cursor after it; errors as for ``Feed.take``."""
        prepared = self._prepared.pop(cursor, None)
        batch, following = prepared.result() if prepared is not None else self._feed.take(cursor)
        self._prepared = {following: self._thread.submit(self._feed.take, following)}
        return batch, following

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
