"""Terms of a policy's loss as abstract values: do they rise or fall with the log-probs of the policy?

Signs alone decide it. Of a batch with ``advantages`` and old ``log_probs``::

    now = self.model(ids).logits.log_softmax(-1).gather(-1, ids)     rises: log-probs
    ratio = (now - old).exp()                                        rises: ratio
    gain = ratio * advantages                                        rises: surrogate
    kl = (ref - now).exp() - (ref - now) - 1                         rises: KL
    loss = -gain.mean() + 0.04 * kl.mean()                           falls: surrogate, rises: KL

Whatever is not known has no value. A sum with something unknown has its known terms.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hfdsl.graph.spans import NOWHERE, Span

QuantityKind: TypeAlias = Literal[
    "number",
    "advantage",
    "logits",
    "distribution",
    "chances",
    "categorical",
    "log_prob",
    "old",
    "reference",
    "gap",
    "ratio",
    "surrogate",
    "kl",
    "entropy",
]
"""The meaning of numbers. ``distribution`` are log-probs of all tokens, ``chances`` their exponentials, and
``log_prob`` those of chosen tokens; ``old`` and ``reference`` are those of other policies. ``gap`` is a difference of
log-probs, and ``ratio`` its exponential."""

TERMS: Final = frozenset({"entropy", "gap", "kl", "surrogate"})
"""The kinds of what a loss is a sum of."""

Base: TypeAlias = Literal["", "old", "reference"]
"""The other side of a comparison of log-probs; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Numbers that rise, or fall if ``sign`` is -1; 0 is an unknown sign.

    A ratio that is ``upside_down`` has its base above. ``clipped`` ones are held between bounds, and a ``statistic`` is
    one number of many. Advantages ``of_rows`` are the same for all tokens of a row, and so are surrogates made of them.
    """

    kind: QuantityKind
    sign: int = 1
    base: Base = ""
    clipped: bool = False
    upside_down: bool = False
    statistic: bool = field(default=False, compare=False)
    of_rows: bool = field(default=False, compare=False)
    place: Span = field(default=NOWHERE, compare=False)

    def times(self, sign: int) -> Quantity:
        """These numbers times one of a sign."""
        return replace(self, sign=self.sign * sign)


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of quantities, of which each kind and sign counts once."""

    terms: frozenset[Quantity]


class Several(NamedTuple):
    """A tuple of values."""

    values: tuple[Any, ...]


PolicyValue: TypeAlias = Quantity | Sum | Several | None
"""The abstract value of an expression; None if unknown."""

POSITIVE: Final = Quantity("number")
"""Numbers that are at least 0, such as a mask."""


def number(value: float) -> Quantity:
    """A number that is known.

    >>> number(-0.5).sign
    -1
    """
    return Quantity("number", (value > 0) - (value < 0))


def has_kind(value: PolicyValue, *kinds: QuantityKind) -> bool:
    """Whether a value is of one of some kinds."""
    return isinstance(value, Quantity) and value.kind in kinds


def has_terms(value: PolicyValue) -> bool:
    """Whether a value may be a part of a loss."""
    return isinstance(value, Sum) or (isinstance(value, Quantity) and value.kind in TERMS)


def terms_of(value: PolicyValue) -> frozenset[Quantity]:
    """The terms of a sum, or a quantity alone."""
    if isinstance(value, Sum):
        return value.terms
    return frozenset([value]) if isinstance(value, Quantity) else frozenset()


def total(*values: PolicyValue) -> PolicyValue:
    """All terms of several values; numbers change nothing."""
    terms = frozenset[Quantity]().union(*map(terms_of, values))
    terms = frozenset(term for term in terms if term.kind != "number")
    if len(terms) == 1:
        return next(iter(terms))
    return Sum(terms) if terms else None


def either(left: PolicyValue, right: PolicyValue) -> PolicyValue:
    """One of two values: of sums, all terms of both."""
    if isinstance(left, Several) and isinstance(right, Several) and len(left.values) == len(right.values):
        return Several(tuple(map(either, left.values, right.values)))
    if left == right:
        return left
    others = [value for value in (left, right) if not has_terms(value)]
    if len(others) < 2 and all(other is None or has_kind(other, "number") for other in others):
        return total(left, right)
    return None


def without_gradient(value: PolicyValue) -> PolicyValue:
    """A value without its gradient: log-probs of the policy are old ones, and a ratio is a weight."""
    match value:
        case Several(values):
            return Several(tuple(map(without_gradient, values)))
        case Quantity("log_prob"):
            return replace(value, kind="old")
        case Quantity("ratio"):
            return POSITIVE
        case Quantity("number" | "advantage" | "old" | "reference"):
            return value
    return None


def negative(value: PolicyValue) -> PolicyValue:
    """A value times -1."""
    if isinstance(value, Sum):
        return Sum(frozenset(term.times(-1) for term in value.terms))
    return value.times(-1) if isinstance(value, Quantity) else None


def product(left: PolicyValue, right: PolicyValue) -> PolicyValue:
    """A product: of each term of a sum.

    >>> product(Quantity("ratio"), Quantity("advantage", -1))
    Quantity(kind='surrogate', sign=-1, ...)
    """
    if isinstance(left, Sum) or isinstance(right, Sum):
        return total(*(product(a, b) for a in terms_of(left) for b in terms_of(right)))
    if not isinstance(left, Quantity) or not isinstance(right, Quantity):
        return None
    for a, b in ((left, right), (right, left)):
        if a.kind == "number":
            return b.times(a.sign) if a.sign else None
        if a.kind == "advantage" and b.kind in ("gap", "log_prob", "ratio") and b.base != "reference":
            upside_down = b.upside_down or (b.kind == "gap" and b.sign < 0)
            sign = a.sign * b.sign
            return Quantity("surrogate", sign, clipped=b.clipped, upside_down=upside_down, of_rows=a.of_rows)
        if a.kind == "chances" and b.kind == "distribution":
            return Quantity("entropy", -a.sign * b.sign)
    return None


def added(left: PolicyValue, right: PolicyValue) -> PolicyValue:
    """A sum: a gap of log-probs, an estimate of a KL, or a sum of terms."""
    if not isinstance(left, Quantity) or not isinstance(right, Quantity):
        return total(left, right)
    first, second = _of_numbers(left, right), _of_log_probs(left, right) or _of_log_probs(right, left)
    return first or second or (None if left.kind == right.kind == "advantage" else total(left, right))


def _of_numbers(left: Quantity, right: Quantity) -> Quantity | None:
    """The sum of numbers, of something and a number, or of advantages less their mean."""
    if left.kind == right.kind == "number":
        return left if left.sign == right.sign else Quantity("number", 0)
    if left.kind == right.kind == "advantage":
        return left if right.statistic and not left.statistic else None
    return next((a for a, b in ((left, right), (right, left)) if b.kind == "number"), None)


def _of_log_probs(left: Quantity, right: Quantity) -> Quantity | None:
    """The difference of two log-probs, or ``ratio - gap``, an estimate of a KL that is at least 0."""
    if left.sign != -right.sign:
        return None
    if left.kind in ("log_prob", "old") and right.kind == "reference":
        return Quantity("gap", left.sign, "reference")
    if left.kind == "log_prob" and right.kind == "old":
        return Quantity("gap", left.sign, "old")
    if left.kind == "ratio" and right.kind == "gap" and left.base == right.base:
        return Quantity("kl", -left.sign if left.upside_down else left.sign, left.base)
    return None


def exponential(source: Quantity) -> Quantity | None:
    """The exponential: of a gap, a ratio."""
    match source.kind:
        case "gap":
            return Quantity("ratio", source.sign, source.base, upside_down=source.sign < 0)
        case "log_prob" if source.sign > 0:
            return Quantity("ratio")
        case "distribution":
            return replace(source, kind="chances")
        case "number" | "advantage" | "old" | "reference":
            return POSITIVE
    return None


def element(source: Quantity, index: ast.expr) -> Quantity:
    """Some of the elements; of log-probs of all tokens those of chosen ones, if tensors pick them."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    picks = any(not isinstance(part, (ast.Constant, ast.Slice, ast.UnaryOp)) for part in parts)
    return replace(source, kind="log_prob") if picks and source.kind == "distribution" else source
