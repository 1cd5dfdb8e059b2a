"""The time of a step, as far as a check can know it: by the seconds that the calls of a program take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpareLag:
    """A queue, by its node, and the ``least`` lag with which steps are as fast as with its own."""

    node: int
    least: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """The ``seconds`` of a step, the mean of ``steps`` simulated ones, and the calls that take longest, in words.

    ``copied`` says how fast it would be if no sync waited for earlier calls; it is empty if that gains nothing.
    """

    seconds: float
    steps: int
    bottleneck: str
    spare_lags: Sequence[SpareLag]
    copied: str = ""
