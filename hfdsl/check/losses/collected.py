"""Finds of an interpretation of a policy's loss, also in the functions that a body calls."""

from __future__ import annotations

from typing import NamedTuple, Self

from hfdsl.check.bodies.linear_numbers import Linear
from hfdsl.check.losses.terms import ClipBound, PolicyValue, is_entropy, terms_of, total
from hfdsl.graph.spans import Span


class Reversal(NamedTuple):
    """The greater of two surrogates where the smaller is meant, or the reverse once they are negated."""

    sign: int
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


class WeightedRatio(NamedTuple):
    """A surrogate by a ratio to a base, times a weight that is a ratio of two other policies."""

    place: Span
    base: str
    above: str
    below: str


class RatioOfOne(NamedTuple):
    """A ratio of log-probs to themselves, and how often a loop takes steps by it on the same rows; None without one."""

    place: Span
    times: Linear | None


class TokenChoice(NamedTuple):
    """Log-probs of tokens as chosen from a distribution: its origin and maker, and what is left out of them."""

    origin: str
    maker: str
    masks: frozenset[str]


class Collected(NamedTuple):
    """The losses and reversals that an interpretation found, also in the functions that a body calls.

    ``by_name`` are methods whose results are known by their names alone. ``clips`` are those with two bounds, and
    ``reference_clips`` extremes of surrogates by a ratio to a reference, clipped and not. ``constant_gaps`` are
    differences of old log-probs to a reference's, and ``values_of_others`` gradients for the values of other terms.
    ``choices`` are log-probs of tokens as they are chosen, and ``weighted_ratios`` are those of decoupled losses.
    ``probabilities`` are taken for ratios, and ``ratios_of_one`` are always 1.
    """

    losses: list[PolicyValue]
    reversals: list[Reversal]
    by_name: list[str]
    clips: list[RatioClip]
    own_ratios: list[OwnRatio]
    reference_clips: list[Span]
    constant_gaps: list[Span]
    values_of_others: list[Span]
    choices: list[TokenChoice]
    weighted_ratios: list[WeightedRatio]
    probabilities: list[Span]
    ratios_of_one: list[RatioOfOne]

    @classmethod
    def nothing(cls) -> Self:
        """The lists before anything has been found."""
        return cls(*([] for _ in cls._fields))

    def without_gradient(self) -> Self:
        """The lists for statements without gradients, whose extremes and ratios are no surrogates."""
        return self._replace(
            reversals=[],
            clips=[],
            own_ratios=[],
            reference_clips=[],
            weighted_ratios=[],
            probabilities=[],
            ratios_of_one=[],
        )

    def of_tokens(self) -> Self:
        """These with losses without terms that need not be of tokens, such as an entropy of attention."""
        return self._replace(losses=[self.terms_of_tokens(loss) for loss in self.losses])

    def terms_of_tokens(self, loss: PolicyValue) -> PolicyValue:
        """A loss without the entropies that need not be of tokens."""
        known = {name for choice in self.choices for name in (choice.origin, choice.maker)} - {""}
        several = terms_of(loss)
        unknown = {
            term
            for term in several
            if is_entropy(term) and not term.of_tokens and known.isdisjoint([term.origin, term.maker])
        }
        return total(*(several - unknown)) if unknown else loss
