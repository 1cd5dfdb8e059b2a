"""The feed of a run: batches from a cursor on, and the cursor after them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from hfdsl.errors import DataError
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Encoded, Encoder
from hfdsl.rl.data.sources import Rows

if TYPE_CHECKING:
    from hfdsl.rl.batches import Prompts, Sequences

    Taken: TypeAlias = tuple[Prompts | Sequences, Cursor]
    """A batch, and the cursor after it."""

OnBad: TypeAlias = Literal["raise", "skip"]
"""What is done about a bad row: it ends the run, or it is passed over and counted."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Batches of ``count`` rows. ``held_out`` are the texts that training passes over, as evaluation has them."""

    rows: Rows
    encoder: Encoder
    count: int
    on_bad: OnBad = "raise"
    held_out: frozenset[str] = field(default_factory=frozenset)

    def take(self, cursor: Cursor) -> Taken:
        """The batch at a cursor, and the cursor after it; the same cursor gives the same batch.

        Raises:
            DataError: HF902, HF903 for a bad row where it is not to be skipped, HF902 where a whole epoch has no row
                that can be taken.
        """
        size, passed = len(self.rows), 0
        rows: list[Encoded] = []
        while len(rows) < self.count:
            if passed == 2 * size:  # the one good row may be first in one epoch and last in the next
                raise DataError("HF902", f"none of the {size} rows can be taken: all are bad or held out")
            index = cursor.row(size)
            cursor = cursor.moved(1, size)
            taken = self._row(index)
            if isinstance(taken, str):
                cursor, passed = replace(cursor, **{taken: getattr(cursor, taken) + 1}), passed + 1
            else:
                rows.append(taken)
                passed = 0
        return self.encoder.batch(rows), cursor

    def first(self) -> tuple[Prompts | Sequences, frozenset[str]]:
        """The first rows in their own order, for an evaluation, and their texts.

        Raises:
            DataError: HF902, HF903 for a bad row where it is not to be skipped, HF902 where there are too few rows.
        """
        good = list(self._good())
        if len(good) < self.count:
            raise DataError("HF902", f"an evaluation of {self.count} prompts has only {len(good)} rows to take")
        return self.encoder.batch(good), frozenset(self.encoder.text(one.row, "") for one in good)

    def _good(self) -> Iterator[Encoded]:
        found = 0
        for index in range(len(self.rows)):
            taken = self._row(index)
            if not isinstance(taken, str):
                yield taken
                found += 1
                if found == self.count:
                    return

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


class Ahead:
    """The same batches; each one is made while the step before it runs, in a thread that ends with the context.

    What goes wrong with a batch is told where it is taken, and never for one that nobody takes.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._made: dict[Cursor, Future[Taken]] = {}
        self._thread = ThreadPoolExecutor(1, "hfdsl-feed")

    def take(self, cursor: Cursor) -> Taken:
        """The batch at a cursor, and the cursor after it; errors as for ``Feed.take``."""
        made = self._made.pop(cursor, None)
        batch, after = made.result() if made is not None else self._feed.take(cursor)
        self._made = {after: self._thread.submit(self._feed.take, after)}
        return batch, after

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
