"""Steps of a dataflow with queues: results come in order, and checkpoints hold the rows that are begun beyond them.

An example with a queue of lag 1 and a checkpoint after every second step::

    step of the run    batches taken from the feed    in the checkpoint
    1                  1, 2
    2                  3                              batch 3, generated; the place in the data after it
    3                  4

A run that resumes from the checkpoint takes batch 4 next: batch 3 comes from the queue.
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
    _cursor: Cursor | None = None
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
            self._cursor = cursor
            with writing(self.log):
                keep_lines(self.log, self.running.decisions)
            self._results = self.running.stream(self._batches(), timeout=self.timeout, log=self.log)
        result = next(self._results)
        values = values_of(self.running.plan, result, step)
        return StepResult(self._cursor or cursor, values, self.running.timings)

    def _batches(self) -> Iterator[Any]:
        while self._cursor is not None:
            batch, self._cursor = self.feed.take(self._cursor)
            yield batch


def keep_lines(file: Path, count: int) -> None:
    """Keep the first lines of a file; those after them are of steps that run again."""
    lines = list[bytes]()
    with suppress(FileNotFoundError), file.open("rb") as opened:
        lines += islice(opened, count)
    file.write_bytes(b"".join(lines))
