"""The progress of a training run on a terminal: one line that is drawn again after every step.

    [########------------]  step 40 of 100  1.2 s a step  1 min 12 s left  score 0.53  loss 0.0121  kl 0.002

Steps with an evaluation keep a line of their own above it. Elsewhere, as in a file or a pipe, a step is a plain line.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Self, TextIO

from hfdsl.rl.training.metrics import Record, line, shown_metrics

WIDTH = 20
"""Signs of the bar."""

LATELY = 20
"""How many steps the estimate of the time left is from."""

METRICS = 3
"""How many metrics are shown."""

CLEAR = "\r\x1b[2K"
"""To the first column, and erase the line."""


def shows_progress(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can draw a line again."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class ProgressBar:
    """The progress line of a run of ``steps`` steps; drawn within its context, and left as it is afterwards."""

    def __init__(self, steps: int, stream: TextIO, clock: Callable[[], float] = perf_counter) -> None:
        self.steps, self.stream, self.clock = steps, stream, clock
        self._ends = deque[tuple[int, float]](maxlen=LATELY + 1)  # the last steps, and when they ended
        self._drawn = False

    def __enter__(self) -> Self:
        self._ends.append((-1, self.clock()))
        return self

    def __exit__(self, *raised: object) -> None:
        if self._drawn:
            print(file=self.stream, flush=True)

    def clear(self) -> None:
        """Erase the line, so that another one can be written; the next step draws it again."""
        if self._drawn:
            print(CLEAR, end="", file=self.stream, flush=True)

    def show(self, record: Record) -> None:
        """Take a step into account, and draw the line."""
        if not self._ends or record.step > self._ends[-1][0]:
            self._ends.append((record.step, self.clock()))
        permanent = f"{line(record)}\n" if any(name.startswith("held_out/") for name in record.values) else ""
        width = shutil.get_terminal_size().columns - 1  # a full line would wrap
        print(f"{CLEAR}{permanent}{self.text(record)[:width]}", end="", file=self.stream, flush=True)
        self._drawn = True

    def text(self, record: Record) -> str:
        """The line after a step."""
        filled = WIDTH * record.step // max(self.steps, 1)
        bar = f"[{'#' * filled}{'-' * (WIDTH - filled)}]"
        seconds = self.seconds_per_step
        speed = [] if seconds is None else [f"{seconds:.2g} s a step" if seconds < 100 else f"{seconds:.0f} s a step"]
        time_left = [] if seconds is None else [f"{in_words(seconds * (self.steps - record.step))} left"]
        return "  ".join(
            [bar, f"step {record.step} of {self.steps}", *speed, *time_left, *shown_metrics(record)[:METRICS]]
        )

    @property
    def seconds_per_step(self) -> float | None:
        """The mean of the last steps, with evaluations and checkpoints; None before there is one."""
        counted = [(after[1] - before[1]) for before, after in pairwise(self._ends) if before[0] >= 0]
        return sum(counted) / len(counted) if counted else None


def in_words(seconds: float) -> str:
    """A duration for people.

    >>> in_words(48.4), in_words(72), in_words(7500), in_words(200_000)
    ('48 s', '1 min 12 s', '2 h 5 min', '2 d 7 h')
    """
    total = round(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for i, (name, size) in enumerate(units):
        if total >= size and i < len(units) - 1:
            smaller, part = units[i + 1]
            remainder = total % size // part
            return f"{total // size} {name}" + (f" {remainder} {smaller}" if remainder else "")
    return f"{total} s"
