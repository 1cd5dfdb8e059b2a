"""Demands: what a program asks of each of its sizes, all splits and requirements together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from hfdsl.check.constraints import Divides, Limit, arithmetic, limits, undivided
from hfdsl.check.repair.search import Choice, Demand
from hfdsl.check.subject import Subject
from hfdsl.errors import DefinitionError
from hfdsl.graph.spans import Span
from hfdsl.types.dims import Answer, Dim, constant

ANSWERS = {Answer.PROVED: True, Answer.REFUTED: False, Answer.UNKNOWN: None}


@dataclass(frozen=True, slots=True)
class Rule:
    """One demand: what it is, why there is one, who makes it where, and whether it holds (None: that is open)."""

    need: str
    why: str
    node: str
    span: Span
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Demands:
    """What is demanded of one dim: the ``sizes`` that are left, with the sizes ``beside`` it that take part."""

    dim: type[Dim]
    given: tuple[int, ...]
    beside: tuple[tuple[type[Dim], int], ...]
    sizes: Choice
    rules: tuple[Rule, ...]

    @property
    def broken(self) -> tuple[Rule, ...]:
        """What the given sizes break."""
        return tuple(rule for rule in self.rules if rule.holds is False)

    def __str__(self) -> str:
        """The sizes in words."""
        left = self.sizes
        first = next(left.upward(left.least, 1), None)
        if first is None:
            return "no size satisfies all of this"
        words = []
        if left.step > 1:
            more = f"{left.residue} more than " if left.residue else ""
            words.append(f"{more}a multiple of {left.step}")
        if first > (left.residue or left.step):
            words.append(f"at least {first}")
        if left.most is not None:
            words.append(f"at most {left.most}")
        return ", ".join(words) or "any size"


def demands(subject: Subject) -> tuple[tuple[Demands, ...], tuple[Rule, ...]]:
    """What is demanded of every dim, and what is demanded of several dims at once or is no matter of arithmetic."""
    found = list(_constraints(subject))
    dims = dict.fromkeys(atom for rule in found for atom in rule.demand.size.atoms if isinstance(atom, type))
    alone = tuple(_demands(subject, dim, found) for dim in dims)
    joint = [rule for rule in found if not any(_alone(subject, dim, rule) for dim in dims)]
    others = chain((_rule(subject, rule) for rule in joint), _evaluated(subject))
    return tuple(demanded for demanded in alone if demanded.rules), tuple(dict.fromkeys(others))


def _constraints(subject: Subject) -> Iterator[Divides | Limit]:
    """The constraints that do not hold for all sizes; a loop that unrolls has each of them once."""
    found: dict[tuple[object, ...], Divides | Limit] = {}
    for rule in arithmetic(subject):
        demand = rule.demand
        if demand.divisor is None or demand.size.divisible_by(demand.divisor) is not Answer.PROVED:
            found.setdefault((demand, rule.why, rule.node.span), rule)
    yield from found.values()


def _demands(subject: Subject, dim: type[Dim], rules: list[Divides | Limit]) -> Demands:
    mine = [(rule, demand) for rule in rules if (demand := _alone(subject, dim, rule))]
    sizes = Choice()
    for _, demand in mine:
        sizes = sizes.under(dim, demand) or sizes
    given = subject.several.get(dim, (subject.dims[dim],) if dim in subject.dims else ())
    used = {atom for rule, _ in mine for atom in rule.demand.size.atoms if atom is not dim}
    beside = tuple((other, size) for other, size in subject.dims.items() if other in used)
    return Demands(dim, given, beside, sizes, tuple(_rule(subject, rule) for rule, _ in mine))


def _alone(subject: Subject, dim: type[Dim], rule: Divides | Limit) -> Demand | None:
    """A rule as a demand on one dim, with the sizes of the others; None where it is not one."""
    rest = {other: constant(number) for other, number in subject.dims.items() if other is not dim}
    demand = replace(rule.demand, size=rule.demand.size.substitute(rest))
    return demand if demand.size.atoms == (dim,) else None


def _rule(subject: Subject, rule: Divides | Limit) -> Rule:
    return Rule(rule.need, rule.why, rule.node.label, rule.node.span, _holds(subject, rule.demand))


def _holds(subject: Subject, demand: Demand) -> bool | None:
    """Whether a demand holds with all sizes that are given."""
    values = [each.known(demand.size).value for each in subject.bindings()]
    known = [value for value in values if value is not None]
    return all(map(demand.holds, known)) if known == values else None


def _evaluated(subject: Subject) -> Iterator[Rule]:
    """The requirements that are no arithmetic of sizes: those are evaluated, with the numbers that they name."""
    bounds = {(limit.node.id, limit.text) for limit in limits(subject)}
    for node, _, text, answer, shown in undivided(subject):
        if (node.id, text) not in bounds:
            holds = None if isinstance(answer, DefinitionError) else ANSWERS[answer]
            need = f"{text} ({shown})" if shown else text
            yield Rule(need, f"the requirement {text}", node.label, node.span, holds)
