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

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hfdsl.check.bodies.linear_numbers import Linear
from hfdsl.check.bodies.row_indices import Indices
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
    "reference_surrogate",
    "kl",
    "entropy",
    "tokens",
]
"""The meaning of numbers. ``distribution`` are log-probs of all tokens, ``chances`` their exponentials, and
``log_prob`` those of chosen tokens; ``old`` and ``reference`` are those of other policies. ``gap`` is a difference of
log-probs, and ``ratio`` its exponential. A ``reference_surrogate`` has a ratio to a reference."""

OWN, NOW, ALONE = "self, before", "self", "self, alone"
"""The policy itself before an update, in it, and above nothing, where columns are named by their paths."""

TERMS: Final = frozenset({"entropy", "gap", "kl", "surrogate"})
"""The kinds of what a loss is a sum of."""

UNKNOWN_PART, BEGINNING, SELECTION = "?", "[:, n:]", "[]"
"""A mask or a slice that may leave out any tokens, a slice that leaves out the first of each row, such as the prompt,
and whatever else takes some tokens, such as an index."""

SOME: Final = frozenset({UNKNOWN_PART})
"""The masks of some tokens, which are unknown."""

PARTS: Final = SOME | {BEGINNING}
"""What leaves out tokens and is no column."""

Divisor: TypeAlias = Literal["", "tokens", "padding", "width"]
"""The count that a masked sum is divided by: of tokens, of tokens and padding in a batch, or in each row; empty for any
other."""

Base: TypeAlias = Literal["", "old", "own", "reference"]
"""The other side of a comparison of log-probs: ``own`` are the same ones, with their gradient; empty if unknown."""


class ClipBound(NamedTuple):
    """A bound of a clip: the number, and where it is written."""

    number: Linear
    place: Span


@dataclass(frozen=True, slots=True)
class Quantity:
    """Numbers that rise, or fall if ``sign`` is -1; 0 is an unknown sign.

    A ratio that is ``upside_down`` has its base above. ``clipped`` ones are held between bounds, and a ``statistic`` is
    one number of many. Advantages ``of_rows`` are the same for all tokens of a row, and so are surrogates made of them.
    ``masks`` are the columns that leave some of these numbers out, by their paths. A gap is ``centered`` if it is 0 at
    tokens that became neither likelier nor rarer, and a ratio if it is 1 there. ``constant`` ones have no gradient. Two
    with the same ``origin`` are computed alike, from the same numbers; a gap ``of_itself`` is that of two such, one of
    them without a gradient. What is ``shifted`` may have been divided, or have a number added to it. Of ``bounds``, a
    lower and an upper one, numbers that are held from one side have one. A gap, a ratio or a weight has a policy
    ``above`` and one ``below``, as their columns are called; old log-probs have one ``above``. Distributions and their
    entropies are certainly ``of_tokens`` if logits are, whose ``maker`` is what the body calls for them. The first of
    ``dims``, None if unknown, are the rows of a batch, and the next tokens; a single number has 0. A ratio of a
    mean over tokens and padding has the place where it is made, ``padded``.
    """

    kind: QuantityKind
    sign: int = 1
    base: Base = ""
    clipped: bool = False
    upside_down: bool = False
    constant: bool = False
    statistic: bool = field(default=False, compare=False)
    of_rows: bool = field(default=False, compare=False)
    masks: frozenset[str] = field(default=frozenset(), compare=False)
    divisor: Divisor = field(default="", compare=False)
    centered: bool = field(default=False, compare=False)
    origin: str = field(default="", compare=False)
    above: str = field(default="", compare=False)
    below: str = field(default="", compare=False)
    of_tokens: bool = field(default=False, compare=False)
    maker: str = field(default="", compare=False)
    dims: int | None = field(default=None, compare=False)
    bounds: tuple[ClipBound | None, ClipBound | None] = field(default=(None, None), compare=False)
    of_itself: bool = field(default=False, compare=False)
    shifted: bool = field(default=False, compare=False)
    padded: Span | None = field(default=None, compare=False)
    place: Span = field(default=NOWHERE, compare=False)

    def times(self, sign: int) -> Quantity:
        """These numbers times one of a sign."""
        return replace(self, sign=self.sign * sign, bounds=self.bounds if sign == 1 else (None, None))

    def off_center(self) -> Quantity:
        """These numbers where something was added to them."""
        return replace(self.moved(), centered=False, bounds=(None, None))

    def moved(self) -> Quantity:
        """These numbers, or others of the same signs: log-probs and ratios are no longer themselves."""
        return replace(self, of_itself=False, shifted=True) if self.kind in ("gap", "log_prob", "ratio") else self

    def between(self, above: str, below: str) -> Quantity:
        """These numbers, as those of two policies."""
        return replace(self, above=above, below=below)

    def masked(self, *masks: str) -> Quantity:
        """These numbers where masks leave some out."""
        return replace(self, masks=self.masks.union(masks))


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of quantities, of which each kind and sign counts once."""

    terms: frozenset[Quantity]


class Several(NamedTuple):
    """A tuple of values."""

    values: tuple[Any, ...]


class Dictionary(NamedTuple):
    """A dictionary of values, by its keys."""

    entries: dict[str, Any]


class Stacked(NamedTuple):
    """Two values along a new dim of a tensor, as it is written."""

    left: Quantity
    right: Quantity
    dim: str


class Batches(NamedTuple):
    """The mini-batches of a loader, each a tuple of some rows of these values."""

    columns: tuple[Any, ...]


PolicyValue: TypeAlias = Quantity | Sum | Several | Dictionary | Stacked | Indices | Batches | None
"""The abstract value of an expression; None if unknown."""

POSITIVE: Final = Quantity("number")
"""Numbers that are at least 0, such as a mask."""


def number(value: float) -> Quantity:
    """A number that is known.

    >>> number(-0.5).sign
    -1
    """
    return Quantity("number", (value > 0) - (value < 0), dims=0)


def has_kind(value: PolicyValue, *kinds: QuantityKind) -> bool:
    """Whether a value is of one of some kinds."""
    return isinstance(value, Quantity) and value.kind in kinds


def has_terms(value: PolicyValue) -> bool:
    """Whether a value may be a part of a loss."""
    return isinstance(value, Sum) or (isinstance(value, Quantity) and value.kind in TERMS and not value.constant)


def is_surrogate(term: Quantity) -> bool:
    """Whether a term is a surrogate, by which a policy learns."""
    return term.kind == "surrogate" and not term.constant


def is_comparison(term: Quantity) -> bool:
    """Whether a term compares with a reference, by a KL or an estimate of one."""
    return term.kind in ("gap", "kl") and term.base == "reference"


def is_entropy(term: Quantity) -> bool:
    """Whether a term is an entropy."""
    return term.kind == "entropy"


def is_everywhere(term: Quantity) -> bool:
    """Whether a term has a gradient at tokens and padding, where nothing leaves padding out."""
    return not term.constant and (term.of_rows or is_entropy(term) or is_comparison(term))


def may_leave_padding_out(masks: frozenset[str]) -> bool:
    """Whether what leaves out tokens may have left out padding, which is at the end of rows."""
    return not masks <= {BEGINNING}


def terms_of(value: PolicyValue) -> frozenset[Quantity]:
    """The terms of a sum, or a quantity alone."""
    if isinstance(value, Sum):
        return value.terms
    return frozenset([value]) if isinstance(value, Quantity) else frozenset()


def part_of(value: PolicyValue, position: int) -> PolicyValue:
    """The value at a position of a tuple; None of other values."""
    values: tuple[PolicyValue, ...] = value.values if isinstance(value, Several) else ()
    return values[position] if position < len(values) else None


def total(*values: PolicyValue) -> PolicyValue:
    """All terms of several values; numbers change nothing, and what leaves out tokens of one of two alike may of both.

    >>> total(Quantity("kl"), Quantity("kl", masks=frozenset({"mask"}))).masks
    frozenset({'mask'})
    """
    by_meaning = dict[Quantity, Quantity]()
    for term in (term for value in values for term in terms_of(value) if term.kind != "number"):
        by_meaning[term] = by_meaning.get(term, term).masked(*term.masks)
    terms = frozenset(by_meaning.values())
    if len(terms) == 1:
        return next(iter(terms))
    return Sum(terms) if terms else None


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
    if "advantage" not in (left.kind, right.kind):  # which make no surrogate of it alone
        left, right = as_weight(left), as_weight(right)
    for a, b in ((left, right), (right, left)):
        if a.kind == "number":
            scaled = b if a.masks or b.kind == "gap" else b.off_center()
            if b.kind == "number":
                scaled = replace(scaled.between(*policies(a, b)), statistic=_is_statistic(a, b))
            weighted = scaled if a.statistic or scaled.divisor else replace(scaled, divisor=a.divisor)
            return weighted.times(a.sign).masked(*a.masks) if a.sign else None
        is_gain = a.kind == "advantage" or (a.kind == "surrogate" and a.constant)
        if is_gain and b.kind in ("gap", "log_prob", "ratio") and b.base != "reference":
            upside_down = b.upside_down or (b.kind == "gap" and b.sign < 0)
            surrogate = replace(b, kind="surrogate", sign=a.sign * b.sign, base="", upside_down=upside_down)
            return replace(surrogate, of_rows=a.of_rows).masked(*a.masks)
        if is_gain and (b.kind == "old" or (b.kind == "ratio" and b.constant)):  # of columns, or detached
            sign = a.sign if b.kind == "ratio" else 0
            return Quantity("surrogate", sign, constant=True, masks=a.masks | b.masks)
        is_to_reference = b.base == "reference" and not b.upside_down and not b.constant
        if a.kind == "advantage" and b.kind == "ratio" and is_to_reference:
            return Quantity("reference_surrogate", a.sign * b.sign, clipped=b.clipped, masks=a.masks | b.masks)
        if a.kind == "chances" and b.kind == "distribution" and a.origin == b.origin != "":
            of_tokens = a.of_tokens or b.of_tokens
            entropy = Quantity("entropy", -a.sign * b.sign, masks=a.masks | b.masks)
            return replace(entropy, origin=a.origin, of_tokens=of_tokens, maker=a.maker)
    return None


def policies(left: Quantity, right: Quantity) -> tuple[str, str]:
    """The policies of two weights together: of the one that has any."""
    both = [(weight.above, weight.below) for weight in (left, right) if weight.above or weight.below]
    return both[0] if len(both) == 1 else ("", "")


def _is_statistic(left: Quantity, right: Quantity) -> bool:
    """Whether a product of numbers is one number of many: of two such, or of one and a number that has no mask."""
    both = (left, right)
    return any(value.statistic for value in both) and all(value.statistic or not value.masks for value in both)


def as_weight(value: Quantity) -> Quantity:
    """A ratio without a gradient as a number."""
    is_weight = value.kind == "ratio" and value.constant and value.base == "old"
    return POSITIVE.times(value.sign).masked(*value.masks).between(value.above, value.below) if is_weight else value


def of_each(value: PolicyValue, change: Callable[[Quantity], Quantity]) -> PolicyValue:
    """A quantity, or each term of a sum, after a change."""
    match value:
        case Sum(several):
            return Sum(frozenset(map(change, several)))
        case Quantity():
            return change(value)
    return value


def selected(value: PolicyValue) -> PolicyValue:
    """Some numbers of a value."""
    return of_each(value, lambda quantity: quantity.masked(SELECTION))


def quotient(value: PolicyValue, divisor: Quantity | None) -> PolicyValue:
    """A value over a number, such as the count of tokens that a mask leaves; None is an unknown one.

    >>> count = Quantity("number", statistic=True, masks=frozenset({"mask"}))
    >>> quotient(Quantity("kl"), count).divisor
    'tokens'
    """
    if divisor is None:
        return of_each(value, lambda q: replace(q.moved(), divisor="", centered=q.centered and q.kind == "gap"))
    result = product(value, replace(divisor, masks=frozenset(), above=divisor.below, below=divisor.above))
    if divisor.statistic and isinstance(result, Quantity) and isinstance(value, Quantity):
        result = replace(result, shifted=value.shifted)
    counts_tokens = divisor.statistic and divisor.masks
    return of_each(result, lambda quantity: replace(quantity, divisor="tokens")) if counts_tokens else result


def added(left: PolicyValue, right: PolicyValue) -> PolicyValue:
    """A sum: a gap of log-probs, an estimate of a KL, or a sum of terms."""
    summed: PolicyValue = None
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        gap = _of_log_probs(left, right) or _of_log_probs(right, left)
        summed = _of_numbers(left, right)
        if gap is not None or (summed is None and left.kind == right.kind == "advantage"):
            return summed or gap
    return of_each(summed or total(left, right), Quantity.moved)


def _of_numbers(left: Quantity, right: Quantity) -> Quantity | None:
    """The sum of numbers, of something and a number, of advantages less their mean, or of several of one sign."""
    if left.kind == right.kind == "number":
        masks = left.masks | right.masks if not (left.masks and right.masks) else SOME
        statistic = left.statistic or right.statistic
        sign, masks = (left.sign, masks) if left.sign == right.sign else (0, SOME)
        return Quantity("number", sign, statistic=statistic, masks=masks)
    if left.kind == right.kind == "advantage":
        own = [value for value in (left, right) if not value.statistic]  # of each row, and not their mean
        return own[0] if own and (len(own) == 1 or left.sign == right.sign) else None
    return next((a.off_center() for a, b in ((left, right), (right, left)) if b.kind == "number"), None)


def _of_log_probs(left: Quantity, right: Quantity) -> Quantity | None:
    """The difference of two log-probs, or ``ratio - gap``, an estimate of a KL that is at least 0."""
    if left.sign != -right.sign:
        return None
    masks, statistic = left.masks | right.masks, left.statistic or right.statistic
    policies = [term.above if term.kind in ("old", "reference") else NOW for term in (left, right)]
    above, below = policies if left.sign > 0 else policies[::-1]
    gap = Quantity("gap", left.sign, statistic=statistic, masks=masks, above=above, below=below)
    if left.kind in ("log_prob", "old") and right.kind == "reference":
        return replace(gap, base="reference", constant=left.kind == "old")
    if left.kind == right.kind == "old" and not right.constant and (left.constant or "" != left.above != right.above):
        return replace(gap, base="old", constant=True, centered=True)
    if left.kind == right.kind == "log_prob" and left.origin == right.origin != "" and left.masks == right.masks:
        return replace(gap, base="own", origin=left.origin)
    if left.kind == "log_prob" and right.kind == "old":
        return replace(gap, base="old", centered=True)
    if left.kind == "ratio" and right.kind == "gap" and left.base == right.base:
        sign = -left.sign if left.upside_down else left.sign
        constant = left.constant and right.constant
        return Quantity("kl", sign, left.base, constant=constant, statistic=statistic, masks=masks)
    return None


def exponential(source: Quantity, *, centered: bool = True) -> Quantity | None:
    """The exponential: of a gap, a ratio; it is not ``centered`` if 1 is subtracted from it."""
    match source.kind:
        case "gap":
            is_centered, source = source.centered and centered, replace(source, bounds=(None, None))
            if source.constant and source.base == "old":  # a weight, whichever policy is above
                return replace(source, kind="ratio", sign=1, centered=is_centered)
            return replace(source, kind="ratio", upside_down=source.sign < 0, centered=is_centered)
        case "log_prob" if source.sign > 0:
            return replace(source, kind="ratio", above=ALONE)
        case "distribution":
            return replace(source, kind="chances")
        case "number" | "advantage" | "old" | "reference":
            return POSITIVE.masked(*source.masks)
    return None
