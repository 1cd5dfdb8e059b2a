"""Finds of an interpretation of a policy's loss, also in the functions that a body calls."""

from __future__ import annotations

from typing import NamedTuple, Self

from hfdsl.check.bodies.linear_numbers import Linear
from hfdsl.check.losses.terms import PolicyValue
from hfdsl.graph.spans import Span


class Reversal(NamedTuple):
    """The greater of two surrogates where the smaller is meant, or the reverse once they are negated."""

    sign: int
    place: Span


class ClipBound(NamedTuple):
    """A bound of a clip: the number, and where it is written."""

    number: Linear
    place: Span


class RatioClip(NamedTuple):
    """A clip of a ratio, or of differences of log-probs, between two bounds."""

    of_ratio: bool
    low: ClipBound
    high: ClipBound
    place: Span

    @property
    def is_of_tail(self) -> bool:
        """Whether the bounds may be those of ratios to look at, as between 2 and 10."""
        return self.of_ratio and not self.low.number.factors and self.low.number.offset > 0


class OwnRatio(NamedTuple):
    """A surrogate by the ratio of log-probs to themselves, and where the lower ones stand."""

    place: Span
    base: Span


class Collected(NamedTuple):
    """The losses and reversals that an interpretation found, also in the functions that a body calls.

    ``by_name`` are methods whose results are known by their names alone, and ``padded_ratios`` exponentials of means
    over tokens and padding. ``clips`` are those with two bounds, and
    ``reference_clips`` extremes of surrogates by a ratio to a reference, clipped and not. ``constant_gaps`` are
    differences of old log-probs to a reference's, and ``values_of_others`` gradients for the values of other terms.
    """

    losses: list[PolicyValue]
    reversals: list[Reversal]
    by_name: list[str]
    padded_ratios: list[Span]
    clips: list[RatioClip]
    own_ratios: list[OwnRatio]
    reference_clips: list[Span]
    constant_gaps: list[Span]
    values_of_others: list[Span]

    @classmethod
    def nothing(cls) -> Self:
        """The lists before anything has been found."""
        return cls([], [], [], [], [], [], [], [], [])

    def without_gradient(self) -> Self:
        """The lists for statements without gradients, whose extremes and ratios are no surrogates."""
        return self._replace(reversals=[], clips=[], own_ratios=[], reference_clips=[])
