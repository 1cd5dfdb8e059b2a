"""Values in a policy's loss where branches meet, and with or without their gradients.

>>> from hfdsl.check.losses.terms import Quantity
>>> without_gradient(Quantity("log_prob")).kind
'old'
"""

from __future__ import annotations

from dataclasses import replace

from hfdsl.check.bodies.row_indices import Indices
from hfdsl.check.losses.names import OTHER_MODELS
from hfdsl.check.losses.terms import (
    OWN,
    POSITIVE,
    UNKNOWN_PART,
    Dictionary,
    PolicyValue,
    Quantity,
    Several,
    Sum,
    has_kind,
    has_terms,
    is_comparison,
    of_each,
    policies,
    total,
)


def either(left: PolicyValue, right: PolicyValue) -> PolicyValue:
    """One of two values: of sums, all terms of both."""
    if isinstance(left, Dictionary) and isinstance(right, Dictionary):
        both = {
            key: either(left.entries[key], right.entries[key]) for key in left.entries.keys() & right.entries.keys()
        }
        return Dictionary({**left.entries, **right.entries, **both})
    if isinstance(left, Several) and isinstance(right, Several) and len(left.values) == len(right.values):
        return Several(tuple(map(either, left.values, right.values)))
    if isinstance(left, Quantity) and isinstance(right, Quantity) and left == right:
        origin = left.origin if left.origin == right.origin else ""
        dims = left.dims if left.dims == right.dims else None
        left = replace(left, centered=left.centered and right.centered, origin=origin, dims=dims)
        left = replace(left, of_itself=left.of_itself and right.of_itself, shifted=left.shifted or right.shifted)
        if (left.above, left.below) != (right.above, right.below):
            left = left.between(*(("", "") if left.kind != "number" else policies(left, right)))
        joined = left if left.masks == right.masks else left.masked(*right.masks, UNKNOWN_PART)
        return joined if left.divisor == right.divisor else replace(joined, divisor="")
    if left == right:
        return left
    are_old = has_kind(left, "old") and has_kind(right, "old")
    if are_old and isinstance(left, Quantity) and isinstance(right, Quantity) and left.sign == right.sign:
        return either(replace(left, constant=False), replace(right, constant=False))
    for ratio, other in ((left, right), (right, left)):
        if isinstance(ratio, Quantity) and ratio.kind == "ratio" and has_kind(other, "number"):
            return replace(ratio, clipped=True, centered=False)
    others = [value for value in (left, right) if not has_terms(value)]
    if len(others) < 2 and all(other is None or has_kind(other, "number") for other in others):
        terms = total(left, right)
        return of_each(terms, lambda term: term.masked(UNKNOWN_PART)) if None in others else terms
    return None


def without_gradient(value: PolicyValue) -> PolicyValue:
    """A value without its gradient: log-probs of the policy are old ones, and a ratio is a weight."""
    match value:
        case Several(values):
            return Several(tuple(map(without_gradient, values)))
        case Dictionary(entries):
            return Dictionary({key: without_gradient(entry) for key, entry in entries.items()})
        case Sum(terms):  # advantages and other numbers
            gains = [term for term in terms if term.kind == "advantage"]
            return gains[0] if len(gains) == 1 else None
        case Quantity("log_prob"):
            is_own = not OTHER_MODELS.search(value.origin.lower())
            return replace(value, kind="old", constant=True, above=OWN if is_own else "")
        case Quantity("ratio"):
            return POSITIVE.masked(*value.masks).between(value.above, value.below)
        case Quantity("number" | "advantage" | "old" | "reference") | Indices():
            return value
        case Quantity() if value.kind == "entropy" or is_comparison(value) or value.constant:
            return replace(value, constant=True)
    return None


def with_gradient(value: PolicyValue) -> PolicyValue:
    """A value of which gradients are taken from here on: detached log-probs of the policy, as a leaf, are its own."""
    if isinstance(value, Quantity) and value.constant:
        return replace(value, kind="log_prob" if value.kind == "old" else value.kind, constant=False)
    return value


def with_origin(value: PolicyValue, origin: str) -> PolicyValue:
    """A value that is computed as another one with this origin; of a tuple, each part as the same part of it."""
    if isinstance(value, Several):
        parts = (with_origin(part, f"{origin}[{i}]" if origin else "") for i, part in enumerate(value.values))
        return Several(tuple(parts))
    if isinstance(value, Dictionary):
        return Dictionary(
            {key: with_origin(v, f"{origin}[{key!r}]" if origin else "") for key, v in value.entries.items()}
        )
    return replace(value, origin=origin) if isinstance(value, Quantity) and value.kind == "log_prob" else value
