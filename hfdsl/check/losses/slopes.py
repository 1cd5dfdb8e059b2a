"""Slopes of preference losses as abstract values: do they rise or fall with the scores of either response of a pair?

A score is what a model gives for a response, such as its log-prob. Signs alone decide it::

    chosen, rejected                        rises with the preferred one; rises with the rejected one
    margin = beta * (chosen - rejected)     rises with the preferred one, and falls with the rejected one
    F.logsigmoid(margin)                    likewise, and of a pair
    -F.logsigmoid(margin)                   the reverse: a loss by which the margin grows
    (margin - 1 / (2 * beta)) ** 2          the same: below the target, which is positive, a square falls
    F.softplus(margin) - F.logsigmoid(margin)       of pairs in both directions
    -(1 - e) * F.logsigmoid(margin) - e * F.logsigmoid(-margin)     as its first term, if e is the smoothing of labels

Whatever is not known has no value, and neither has what is computed of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hfdsl.check.bodies.known_values import computed
from hfdsl.check.losses.terms import Dictionary, Several
from hfdsl.graph.spans import NOWHERE, Span

Bases: TypeAlias = tuple[int | None, int | None]
"""The signs with which numbers rise with a reference's scores of the preferred and the rejected response."""

UNKNOWN_BASES: Final[Bases] = (None, None)
"""Numbers that may rise or fall with them."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Numbers that rise with a score if its sign is 1, and fall if it is -1; None is unknown, and 0 without effect.

    ``pairs`` are the signs of the margin in functions of both scores among their terms, 0 if unknown. ``offset`` is the
    sign of the constant in a linear function of scores, and ``bound`` that of all the numbers: 1 if none is negative. A
    term ``is_minor`` whose weight is the smoothing of labels. ``curve`` is 1 of a convex function of scores, such as
    one to be minimized, and -1 of a concave one. The function is at ``place``, and the first difference of both scores
    at ``margin``. ``bases`` are how it rises with the scores that a reference has for either response, and at
    ``added_base`` a function is taken of a margin to which that of the reference is added.
    """

    preferred: int | None = 0
    rejected: int | None = 0
    pairs: frozenset[int] = frozenset()
    offset: int | None = field(default=0, compare=False)
    bound: int = field(default=0, compare=False)
    curve: int = field(default=0, compare=False)
    bases: Bases = field(default=(0, 0), compare=False)
    added_base: Span | None = field(default=None, compare=False)
    is_minor: bool = False
    place: Span = field(default=NOWHERE, compare=False)
    margin: Span = field(default=NOWHERE, compare=False)

    @property
    def directions(self) -> frozenset[int]:
        """The signs of the margin: in its terms, or in the sum of linear ones; 0 if unknown."""
        if self.pairs or 0 in (self.preferred, self.rejected):
            return self.pairs
        if self.preferred is None or self.rejected is None:
            return frozenset({0})
        return frozenset({self.preferred} if self.preferred == -self.rejected else ())

    def times(self, sign: int) -> Slope:
        """These numbers times one of a sign, which 0 says nothing of."""
        if sign == 0:
            preferred, rejected = scaled_bases((self.preferred, self.rejected), 0)
            pairs = frozenset({0}) if self.directions else frozenset[int]()
            unknown = replace(self, preferred=preferred, rejected=rejected, pairs=pairs, offset=None, bound=0, curve=0)
            return replace(unknown, bases=scaled_bases(self.bases, 0))
        return replace(
            self,
            preferred=_scaled(self.preferred, sign),
            rejected=_scaled(self.rejected, sign),
            pairs=frozenset(direction * sign for direction in self.pairs),
            offset=_scaled(self.offset, sign),
            bound=self.bound * sign,
            curve=self.curve * sign,
            bases=scaled_bases(self.bases, sign),
        )

    def through(self, bound: int, curve: int, place: Span) -> Slope:
        """The result of a function that rises: its numbers are of the sign ``bound``, and it curves up or down."""
        is_linear = not self.pairs
        curve = curve if is_linear or curve == self.curve else 0
        is_of_pair = bool(self.directions) and is_linear
        changed = replace(self, pairs=self.directions, offset=None, bound=bound, curve=curve)
        if is_of_pair and (self.preferred, self.rejected) == self.bases:
            changed = replace(changed, added_base=self.margin)
        return replace(changed, place=place) if is_of_pair else changed

    def hinged(self, place: Span) -> Slope:
        """These numbers where they are positive; around a margin of 0, they certainly are with a positive constant."""
        is_active = self.offset in (0, 1) or bool(self.pairs)
        return (self if is_active else self.times(0)).through(1, 1, place)

    def squared(self, place: Span) -> Slope:
        """The square: it falls where the numbers are negative, such as those below a target."""
        sign = self.bound or self.offset or 0
        risen = replace(self.times(sign), curve=0) if self.pairs else self.times(sign)
        return risen.through(1, 1, place)


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers of a sign, 0 if unknown, that no score changes; a single one has a ``value`` if that is known.

    What ``is_base`` are scores of another policy, such as a reference, to which those of the policy are close at first.
    ``bases`` are how they rise with the scores that a reference has for either response. A number ``is_small`` that is
    less than half, such as the smoothing of labels.
    """

    sign: int = 0
    value: float | None = field(default=None, compare=False)
    is_base: bool = False
    is_small: bool = False
    bases: Bases = field(default=(0, 0), compare=False)


class Given(NamedTuple):
    """Tokens of a response, which an update gets; 0 is of both, or of neither."""

    side: int


class Model(NamedTuple):
    """Something that a role keeps, such as a model, by the words of its path."""

    words: frozenset[str]


class ResponseOutput(NamedTuple):
    """The output of a model for a response: numbers of any meaning, log-probs of all tokens, or parts of those."""

    side: int
    kind: Literal["any", "log_probs", "categorical", "picked", "partition"] = "any"


class Halves(NamedTuple):
    """The rows of one tensor after those of another one."""

    first: Any
    second: Any


class PairScores(NamedTuple):
    """Scores of two responses beside each other, or their chances of being the better one, or the logs of these.

    They are along the last dim, or along the first one.
    """

    first: Any
    second: Any
    form: Literal["scores", "chances", "logs"] = "scores"
    along: Literal["last", "first"] = "last"


PreferenceValue: TypeAlias = (
    Slope | Number | Given | Model | ResponseOutput | Halves | PairScores | Several | Dictionary | None
)
"""The abstract value of an expression; None if unknown."""

COUNT: Final = Number(1)
"""Numbers that are at least 0, such as a mask."""


def number(value: float) -> Number:
    """A number that is known.

    >>> number(-0.5).sign
    -1
    """
    return Number((value > 0) - (value < 0), float(value))


def score_of(side: int, bound: int = 0) -> Slope:
    """The score of a response."""
    return Slope(preferred=1, bound=bound) if side > 0 else Slope(rejected=1, bound=bound)


def base_of(side: int) -> Number:
    """The score that a reference has for a response.

    >>> base_of(-1).bases
    (0, 1)
    """
    return Number(is_base=True, bases=(int(side > 0), int(side < 0)) if side else UNKNOWN_BASES)


def either(left: PreferenceValue, right: PreferenceValue) -> PreferenceValue:
    """One of two values, if they rise and fall alike."""
    match left, right:
        case Slope(), Slope() if left == right:
            offset = left.offset if left.offset == right.offset else None
            bound = left.bound if left.bound == right.bound else 0
            curve = left.curve if left.curve == right.curve else 0
            bases = left.bases if left.bases == right.bases else UNKNOWN_BASES
            return replace(left, offset=offset, bound=bound, curve=curve, bases=bases)
        case Number(), Number():
            is_same = left == right and (left.value, left.bases) == (right.value, right.bases)
            return left if is_same else Number(left.sign * (left.sign == right.sign), bases=UNKNOWN_BASES)
        case Several(values), Several(others) if len(values) == len(others):
            return Several(tuple(map(either, values, others)))
    return left if left == right else None


def opposite(value: PreferenceValue) -> PreferenceValue:
    """A value times -1."""
    match value:
        case Slope():
            return value.times(-1)
        case Number(sign, known):
            bases = scaled_bases(value.bases, -1)
            return replace(value, sign=-sign, value=None if known is None else -known, bases=bases)
    return None


def total(left: PreferenceValue, right: PreferenceValue, place: Span) -> PreferenceValue:
    """A sum, which is written at a place."""
    match left, right:
        case Slope(), Slope():
            return _sum_of_slopes(left, right, place)
        case (Slope() as slope, Number(is_base=True) as base) | (Number(is_base=True) as base, Slope() as slope):
            return replace(slope, bound=0, bases=_summed_bases(slope.bases, base.bases))
        case (Slope() as slope, Number(sign, value) as added) | (Number(sign, value) as added, Slope() as slope):
            is_unknown = sign == 0 and value != 0
            bound = slope.bound if value == 0 or (sign and sign == slope.bound) else 0
            moved = replace(slope, offset=None if is_unknown else _agreed(slope.offset, sign), bound=bound)
            return replace(moved, bases=_summed_bases(slope.bases, added.bases))
        case Number(), Number():
            if left.value is not None and right.value is not None:
                return number(left.value + right.value)
            if {left.value, right.value} >= {1} and any(term.is_small and term.sign < 0 for term in (left, right)):
                return COUNT
            bases = _summed_bases(left.bases, right.bases)
            return Number(left.sign * (left.sign == right.sign), is_base=left.is_base and right.is_base, bases=bases)
    return None


def product(left: PreferenceValue, right: PreferenceValue) -> PreferenceValue:
    """A product with numbers."""
    match left, right:
        case (_, Number(_, 0)) | (Number(_, 0), _) if left is not None and right is not None:
            return number(0)
        case (Slope() as slope, Number(sign) as factor) | (Number(sign) as factor, Slope() as slope):
            scaled = slope.times(sign)
            scaled = scaled if factor.bases == (0, 0) else replace(scaled, bases=UNKNOWN_BASES)
            return replace(scaled, is_minor=True) if factor.is_small else scaled
        case Number(), Number():
            if left.value is not None and right.value is not None:
                return number(left.value * right.value)
            bases = UNKNOWN_BASES
            for number_of_base, factor in ((left, right), (right, left)):
                if factor.bases == (0, 0):
                    bases = scaled_bases(number_of_base.bases, factor.sign)
            return Number(left.sign * right.sign, is_base=left.is_base or right.is_base, bases=bases)
    return None


def quotient(left: PreferenceValue, divisor: Number) -> PreferenceValue:
    """A value over numbers."""
    if divisor.value == 0:
        return None
    inverse = None if divisor.value is None else 1 / divisor.value
    return product(left, Number(divisor.sign, inverse, bases=divisor.bases))


def compared(function: str, left: PreferenceValue, right: PreferenceValue) -> Number:
    """The result of a comparison, which is a known one if the numbers are.

    >>> compared("bitwise_not", number(1), None).value
    0.0
    """
    if isinstance(left, Number) and left.value in (0, 1):
        if function in ("bitwise_not", "logical_not"):
            return number(1 - left.value)
        if function in ("eq", "ge", "gt", "le", "lt", "ne") and isinstance(right, Number):
            known = computed(function, left.value, right.value)
            return COUNT if known is None else number(known.value)
    return COUNT


def _scaled(trend: int | None, sign: int) -> int | None:
    return None if trend is None else trend * sign


def scaled_bases(bases: Bases, sign: int) -> Bases:
    """The signs of trends times a number of a sign, which 0 says nothing of."""
    preferred, rejected = (trend if trend == 0 else None if sign == 0 else _scaled(trend, sign) for trend in bases)
    return preferred, rejected


def _summed_bases(left: Bases, right: Bases) -> Bases:
    return _agreed(left[0], right[0]), _agreed(left[1], right[1])


def _agreed(left: int | None, right: int | None) -> int | None:
    """The sign of a sum of two numbers; None if it is unknown."""
    if left == 0 or right == 0:
        return right if left == 0 else left
    return left if left == right else None


def _sum_of_slopes(left: Slope, right: Slope, place: Span) -> Slope:
    """A sum: linear ones have a margin together; a term that is no function of both scores is in none of the pairs."""
    if left.is_minor is not right.is_minor and left.directions and right.directions:
        return right if left.is_minor else left
    is_linear = not left.pairs and not right.pairs
    first = left if left.pairs or (left.directions and not right.pairs) else right
    summed = Slope(
        preferred=_agreed(left.preferred, right.preferred),
        rejected=_agreed(left.rejected, right.rejected),
        pairs=frozenset() if is_linear else left.directions | right.directions,
        offset=_agreed(left.offset, right.offset),
        bound=left.bound if left.bound == right.bound else 0,
        curve=first.curve if is_linear or left.pairs != right.pairs else left.curve * (left.curve == right.curve),
        place=first.place,
        margin=first.margin,
        bases=_summed_bases(left.bases, right.bases),
        added_base=left.added_base or right.added_base,
        is_minor=left.is_minor and right.is_minor,
    )
    is_margin = bool(summed.directions) and not left.directions and not right.directions
    return replace(summed, margin=place, place=place) if is_margin else summed
