"""Steps of a dataflow with queues: results come in order, and checkpoints hold the rows that are begun beyond them.

An example with a queue of lag 1 and a checkpoint after every second step::

    step of the run    batches taken from the feed    in the checkpoint
    1                  1, 2
    2                  3                              batch 3, generated; the place in the data after it
    3                  4

A run that resumes from the checkpoint takes batch 4 next: batch 3 comes from the queue. If the feed was preparing batch
4 when step 2 ended, the checkpoint waits for it and holds it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hfdsl.rl.data.feed import Feed, Prefetcher
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.training.metrics import values_of, writing
from hfdsl.rl.training.rounds import Recording, StepResult
from hfdsl.runtime.running import Running

DECISIONS = "queues.jsonl"
"""The file of a run with the decisions of its queues."""


@dataclass(slots=True)
class Streamed:
    """Steps of a dataflow whose stages step on their own, with the decisions of its queues in the file ``log``."""

    feed: Feed | Prefetcher
    running: Running
    log: Path
    timeout: float
    _cursors: dict[int, Cursor] = field(default_factory=dict)
    """The cursors after batches, by how many the run has read then; a thread of the stream takes batches."""

    _results: Iterator[Any] | None = field(default=None, repr=False)

    @property
    def runs(self) -> tuple[Running, ...]:
        """The plans that a step runs."""
        return (self.running,)

    def step(self, cursor: Cursor, step: int, recorded: Recording) -> StepResult:
        """The next result, with the cursor after all batches that have been begun.

        Errors as for ``Feed.take``, ``Running.stream`` and ``values_of``.
        """
        if self._results is None:
            self._cursors[self.running.batches_read] = cursor
            with writing(self.log):
                keep_lines(self.log, self.running.decisions)
            batches = self._batches(self.running.batches_read, cursor)
            self._results = self.running.stream(batches, timeout=self.timeout, log=self.log)
        result = next(self._results)
        values = values_of(self.running.plan, result, step)
        return StepResult(self._cursor(), values, self.running.timings)

    def settled(self) -> Cursor:
        """The cursor of a checkpoint: after the batch, too, that is being prepared."""
        self.running.wait_for_loader()
        return self._cursor()

    def _cursor(self) -> Cursor:
        """The cursor after all batches that the run has read."""
        count = self.running.batches_read
        for earlier in [number for number in list(self._cursors) if number < count]:
            del self._cursors[earlier]
        return self._cursors[count]

    def _batches(self, count: int, cursor: Cursor) -> Iterator[Any]:
        while True:
            batch, cursor = self.feed.take(cursor)
            count += 1
            self._cursors[count] = cursor
            yield batch


def keep_lines(file: Path, count: int) -> None:
    """Keep the first lines of a file; those after them are of steps that run again."""
    lines = list[bytes]()
    with suppress(FileNotFoundError), file.open("rb") as opened:
        lines += islice(opened, count)
    file.write_bytes(b"".join(lines))
