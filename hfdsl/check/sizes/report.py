"""Size reports for ``hfdsl requires``: the constraints on each dim, and the sizes that satisfy them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from hfdsl.check.context import Context
from hfdsl.check.sizes.constraints import Constraint, SizeSet
from hfdsl.check.sizes.demands import Bound, Divisible, Requirement, at_calls, positive
from hfdsl.graph.program import Node
from hfdsl.graph.spans import Span
from hfdsl.types.dims import Answer, Dim

HOLDS = {Answer.PROVED: True, Answer.REFUTED: False, Answer.UNKNOWN: None}

Called = tuple[Node, "Divisible | Bound"]
"""A demand at one of its calls."""


@dataclass(frozen=True, slots=True)
class DemandReport:
    """One demand: its text, its reason, its call and place, and whether it holds (None: undecided)."""

    need: str
    why: str
    node: str
    span: Span
    holds: bool | None


@dataclass(frozen=True, slots=True)
class DimReport:
    """The demands on one dim: the ``sizes`` that satisfy them, with the sizes ``beside`` it that take part."""

    dim: type[Dim]
    given: tuple[int, ...]
    beside: tuple[tuple[type[Dim], int], ...]
    sizes: SizeSet
    demands: tuple[DemandReport, ...]

    @property
    def broken(self) -> tuple[DemandReport, ...]:
        """The demands that the given sizes violate."""
        return tuple(demand for demand in self.demands if demand.holds is False)

    def __str__(self) -> str:
        """The sizes in words."""
        allowed = self.sizes
        first = next(allowed.upward(allowed.least, 1), None)
        if first is None:
            return "no size satisfies all of this"
        words = []
        if allowed.step > 1:
            more = f"{allowed.residue} more than " if allowed.residue else ""
            words.append(f"{more}a multiple of {allowed.step}")
        if first > (allowed.residue or allowed.step):
            words.append(f"at least {first}")
        if allowed.most is not None:
            words.append(f"at most {allowed.most}")
        return ", ".join(words) or "any size"


def size_report(context: Context) -> tuple[tuple[DimReport, ...], tuple[DemandReport, ...]]:
    """The demands on every dim, and those on several dims at once or beyond arithmetic."""
    calls = list(_undetermined(context))
    dims = dict.fromkeys(atom for _, d in calls for atom in d.constraint.size.atoms if isinstance(atom, type))
    reports = tuple(_dim_report(context, dim, calls) for dim in dims)
    joint = [call for call in calls if not any(_alone(context, dim, call[1]) for dim in dims)]
    others = chain((_demand_report(context, *call) for call in joint), _evaluated(context))
    return tuple(report for report in reports if report.demands), tuple(dict.fromkeys(others))


def _undetermined(context: Context) -> Iterator[Called]:
    """The demands that do not hold for all sizes; a loop that unrolls has each of them once."""
    calls: dict[tuple[object, ...], Called] = {}
    demands = [demand for demand, _ in context.verdicts]
    divisible = [demand for demand in demands if isinstance(demand, Divisible)]
    undetermined = [d for d in divisible if d.size.divisible_by(d.divisor) is not Answer.PROVED]
    bounds = [demand for demand in demands if isinstance(demand, Bound)]
    groups: tuple[Iterable[Divisible | Bound], ...] = (undetermined, positive(divisible), bounds)
    for node, demand in chain.from_iterable(map(at_calls, groups)):
        calls.setdefault((demand.constraint, demand.why, node.span), (node, demand))
    yield from calls.values()


def _dim_report(context: Context, dim: type[Dim], calls: list[Called]) -> DimReport:
    on_dim = [(node, demand, constraint) for node, demand in calls if (constraint := _alone(context, dim, demand))]
    sizes = SizeSet()
    for _, _, constraint in on_dim:
        sizes = sizes.satisfying(dim, constraint) or sizes
    given_sizes = context.alternatives.get(dim, (context.sizes[dim],) if dim in context.sizes else ())
    used = {atom for _, demand, _ in on_dim for atom in demand.constraint.size.atoms if atom is not dim}
    beside = tuple((other_dim, size) for other_dim, size in context.sizes.items() if other_dim in used)
    return DimReport(dim, given_sizes, beside, sizes, tuple(_demand_report(context, node, d) for node, d, _ in on_dim))


def _alone(context: Context, dim: type[Dim], demand: Divisible | Bound) -> Constraint | None:
    """A demand as a constraint on one dim, with the sizes of the others; None if it is not one."""
    others = {other_dim: size for other_dim, size in context.known_sizes.items() if other_dim is not dim}
    constraint = replace(demand.constraint, size=demand.constraint.size.substitute(others))
    return constraint if constraint.size.atoms == (dim,) else None


def _demand_report(context: Context, node: Node, demand: Divisible | Bound) -> DemandReport:
    return DemandReport(demand.need, demand.why, node.label, node.span, _holds(context, demand.constraint))


def _holds(context: Context, constraint: Constraint) -> bool | None:
    """Whether a constraint holds with all sizes that are given."""
    values = [combination.known(constraint.size).value for combination in context.combinations]
    known_values = [value for value in values if value is not None]
    return all(map(constraint.holds, known_values)) if known_values == values else None


def _evaluated(context: Context) -> Iterator[DemandReport]:
    """The requirements that are no arithmetic of sizes: those are evaluated, with the numbers that they name."""
    demands = [demand for demand, _ in context.verdicts]
    solved = {(demand.node.id, demand.text) for demand in demands if isinstance(demand, Bound)}
    evaluated = (d for d in demands if isinstance(d, Requirement) and (d.node.id, d.text) not in solved)
    for node, demand in at_calls(evaluated):
        evaluation = demand.evaluated(context.known_sizes)
        if evaluation is not None:
            holds = None if evaluation.error else HOLDS[evaluation.answer]
            need = f"{demand.text} ({evaluation.shown})" if evaluation.shown else demand.text
            yield DemandReport(need, f"the requirement {demand.text}", node.label, node.span, holds)
