"""Temporal differences in code: are errors of values to the reward and the discounted value one step later?

A worked example; only the first line is right::

    delta = r[:, t] + gamma * v[:, t + 1] - v[:, t]
    delta = r[:, t] + gamma * lam * v[:, t + 1] - v[:, t]       lam discounts sums of errors, and no value
    delta = r[:, t] + gamma * v[:, t] - v[:, t]                 one value twice, and none of the next step
    delta = r[:, t] - gamma * v[:, t + 1] + v[:, t]             both values with the sign of the other one
    delta = r[:, t] - gamma * v[:, t + 1] - v[:, t]             the next value with the sign of the first

A value one step later has another index of the same tensor, a name that says so, or a name for such an element.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.syntax_trees import nodes_of

DISCOUNT: Final = re.compile(r"(.*_)?(decay|discount|gamma|lam|lambda|lmbda)(_.*)?", re.IGNORECASE)
"""The names of discounts."""

DECAY: Final = re.compile(r"(gae_)?(lam|lambda|lmbda)(_|_gae)?", re.IGNORECASE)
"""The names of the decay of an estimate, which is no discount of values."""

NEXT_VALUE: Final = re.compile(r"(next_?v(al(ue)?s?)?|nxt(_v(al(ue)?s?)?)?|v(al(ue)?s?)?_next|later)")
"""The names of the values one step later."""

VALUE: Final = re.compile(r"(.*_)?(v|vals?|values?)(_.*)?")
"""The names of values."""

COST: Final = re.compile(r".*(cost|loss|penalt).*")
"""The names of rewards that count against an action."""

TARGET: Final = "delta = reward + gamma * next_value - value, and advantage = delta + gamma * lam * next_advantage"
"""The formulas of generalized advantages."""


class MistakenDifference(NamedTuple):
    """A part of a temporal difference that is wrong, its effect, a label and advice."""

    node: ast.expr
    effect: str
    label: str
    advice: str


class Term(NamedTuple):
    """A term of a sum: its sign and its factors."""

    sign: int
    factors: Sequence[ast.expr]

    @property
    def lone(self) -> ast.expr | None:
        """The only factor; None of a product."""
        return self.factors[0] if len(self.factors) == 1 else None


def mistaken_differences(function: ReadFunction) -> Iterator[MistakenDifference]:
    """The sums in a function that are meant for temporal differences, and are none."""
    nodes = nodes_of(function.definition)
    sums = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))]
    later = _later_names(function) if sums else frozenset[str]()
    for node in sums:
        terms = [*sum_terms(node)]
        for term in terms if len(terms) > 2 else ():
            mistake = _mistake(term, terms, later)
            if mistake is not None:
                yield mistake


def _mistake(term: Term, terms: Sequence[Term], later: AbstractSet[str]) -> MistakenDifference | None:
    """The mistake in a discounted value of a temporal difference; None if it is right, or another term."""
    values = [(other.sign, other.lone) for other in terms if other.lone is not None]
    subtracted, added = ([value for sign, value in values if sign == wanted] for wanted in (-1, 1))
    decays = [factor for factor in term.factors if DECAY.fullmatch(last_name(factor))]
    discounts = [factor for factor in term.factors if DISCOUNT.fullmatch(last_name(factor))]
    if term.sign > 0 and decays and _is_later(term, subtracted, later):
        return MistakenDifference(
            decays[0],
            f"discounts the value one step later by '{ast.unparse(decays[0])}', which is for the sum of the errors of "
            "values alone",
            "no discount of values",
            TARGET,
        )
    for value in subtracted if term.sign > 0 and discounts else ():
        if _is_value(value) and any(ast.dump(factor) == ast.dump(value) for factor in term.factors):
            text = ast.unparse(value)
            return MistakenDifference(
                value,
                f"takes '{text}' for the value one step later, too: nothing that comes after has a part in the error",
                "the same value as the discounted one",
                TARGET,
            )
    for value in added + subtracted if term.sign < 0 and discounts else ():
        rewards = [other for other in added if other is not value and not _is_cost(other)]
        if rewards and _is_later(term, [value], later) and _is_value(value):
            text, is_added = ast.unparse(value), value in added
            start = f"adds '{text}' to a reward, and subtracts" if is_added else f"subtracts '{text}' and"
            label = "its own value has a minus" if is_added else "the value one step later has a plus"
            effect = f"{start} the value one step later: an action is good where values fall after it"
            return MistakenDifference(value, effect, label, TARGET)
    return None


def _is_value(node: ast.expr) -> bool:
    """Whether an expression is called a value."""
    return VALUE.fullmatch(last_name(node.value if isinstance(node, ast.Subscript) else node)) is not None


def _is_cost(node: ast.expr) -> bool:
    return COST.fullmatch(ast.unparse(node)) is not None


def _is_later(term: Term, values: Sequence[ast.expr], later: AbstractSet[str]) -> bool:
    """Whether a factor of a term is the value one step after one of some values."""
    for factor in term.factors:
        for value in values:
            match factor, value:
                case ast.Subscript(owner, index), ast.Subscript(other, other_index):
                    if ast.dump(owner) == ast.dump(other) and ast.dump(index) != ast.dump(other_index):
                        return True
                case ast.Name(name), ast.Subscript() | ast.Name():
                    if name in later or NEXT_VALUE.fullmatch(name) is not None:
                        return True
    return False


def _later_names(function: ReadFunction) -> frozenset[str]:
    """The names that all stand for elements one step later, or for a number where there is none."""
    assigned, stores = dict[str, list[bool]](), list[str]()
    for node in nodes_of(function.definition):
        match node:
            case ast.Assign([ast.Name(name)], value):
                assigned.setdefault(name, []).append(_is_one_later(value))
            case ast.Name(name, ast.Store()):
                stores.append(name)
    return frozenset(name for name, later in assigned.items() if all(later) and stores.count(name) == len(later))


def _is_one_later(node: ast.expr) -> bool:
    """Whether an expression is an element after the one of a loop, as in ``v[:, t + 1] if t + 1 < steps else 0``."""
    match node:
        case ast.IfExp(_, body, otherwise):
            return _is_one_later(body) != _is_one_later(otherwise)
        case ast.Subscript(_, index):
            return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add) for part in nodes_of(index))
    return False


# -- arithmetic


def sum_terms(node: ast.expr, sign: int = 1) -> Iterator[Term]:
    """The terms of a sum.

    >>> [(term.sign, len(term.factors)) for term in sum_terms(ast.parse("a - (b * c - d)", mode="eval").body)]
    [(1, 1), (-1, 2), (1, 1)]
    """
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield from sum_terms(left, sign)
            yield from sum_terms(right, sign)
        case ast.BinOp(left, ast.Sub(), right):
            yield from sum_terms(left, sign)
            yield from sum_terms(right, -sign)
        case ast.UnaryOp(ast.USub(), operand):
            yield from sum_terms(operand, -sign)
        case _:
            yield Term(sign, [*_factors(node)])


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """The factors of a product."""
    match node:
        case ast.BinOp(left, ast.Mult(), right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield node
