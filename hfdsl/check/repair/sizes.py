"""Sizes that repair a program: of one dim or, if none of one dim does, of two at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, combinations

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Fix
from hfdsl.check.repair.search import SUBSTITUTION, PairSearch, Search
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.check.sizes.constraints import Constraint
from hfdsl.check.sizes.demands import Bound, DemandKey, Divisible, KnownSizes, solvable
from hfdsl.types.dims import Answer, Dim, constant
from hfdsl.types.numbers import join_numbers

Sizes = Mapping[type[Dim], Sequence[int]]
"""Other sizes for each dim, the sizes of the other dims unchanged."""

WORKS = "every split and requirement then holds"
THIS_WORKS = "this then holds"
MAX_PAIRS = 4  # pairs of dims that are searched for one finding


def solvable_demands(context: Context) -> Iterator[Divisible | Bound]:
    """The arithmetic demands of the program, with its sizes."""
    return solvable(demand for demand, _ in context.verdicts)


def constraints_on(context: Context, *dims: type[Dim]) -> dict[Constraint, Divisible | Bound]:
    """The constraints on these dims, given the sizes of the others, each with the first demand that implies it."""
    others = {dim: size for dim, size in context.known_sizes.items() if dim not in dims}
    demands: dict[Constraint, Divisible | Bound] = {}
    for demand in solvable_demands(context):
        constraint = replace(demand.constraint, size=demand.constraint.size.substitute(others))
        if constraint.size.atoms and set(constraint.size.atoms) <= set(dims):
            demands.setdefault(constraint, demand)
    return demands


def refuted(context: Context) -> set[DemandKey]:
    """The violated demands that other sizes may repair."""
    return {demand.key for demand in context.refuted}


def suggested_sizes(
    context: Context, atoms: Iterable[object], broken: set[DemandKey], wanted: Constraint | None = None
) -> dict[type[Dim], tuple[int, ...]]:
    """For each of the dims its nearest sizes with which every demand holds; other dims are unchanged.

    The sizes satisfy ``wanted`` too.
    """
    sizes = {}
    for dim in _sized(context, atoms) if context.search else ():
        if not context.budget.spend("evaluations", SUBSTITUTION * len(context.demands)):
            break
        constraints = list(constraints_on(context, dim))
        if wanted is not None:
            others = {other_dim: size for other_dim, size in context.known_sizes.items() if other_dim is not dim}
            constraints.append(replace(wanted, size=wanted.size.substitute(others)))
        spend = partial(context.budget.spend, "evaluations")
        search = Search(dim, context.sizes[dim], constraints, _Trial(context, (dim,), broken).works, spend)
        if nearest := search.nearest():
            sizes[dim] = nearest
    return sizes


def _sized(context: Context, atoms: Iterable[object]) -> list[type[Dim]]:
    """The dims among these that have a size."""
    return [atom for atom in atoms if isinstance(atom, type) and atom in context.sizes]


def resized(context: Context, sizes: Sizes, works: str = WORKS) -> Iterator[Suggestion]:
    """Other sizes of one dim, which may leave other demands violated."""
    for dim, new_sizes in sizes.items():
        then = works if all(_repairs_all(context, {dim: new_size}) for new_size in new_sizes) else THIS_WORKS
        changes = tuple(_size_change(context, {dim: new_size}, str(new_size)) for new_size in new_sizes)
        yield Suggestion(changes, f"set {context.dim_in_words(dim)} to ", f": {then}")


def in_words(context: Context, sizes: Sizes) -> str:
    """Each dim with its sizes."""
    return " or ".join(f"{context.dim_in_words(dim)} set to {join_numbers(n, ' or ')}" for dim, n in sizes.items())


def resized_together(context: Context, atoms: Iterable[object], broken: set[DemandKey]) -> Iterator[Suggestion]:
    """Other sizes of two dims at once, the pair with the smallest relative change first."""
    changes = []
    for dims in _pairs(context, atoms)[:MAX_PAIRS]:
        if not context.budget.spend("evaluations", SUBSTITUTION * len(context.demands)):
            break
        now, trial = (context.sizes[dims[0]], context.sizes[dims[1]]), _Trial(context, dims, broken)
        spend = partial(context.budget.spend, "evaluations")
        search = PairSearch(dims, now, list(constraints_on(context, *dims)), trial.works, spend)
        if (pair := search.nearest()) is not None:
            changes.append((search.change(*pair), dims, pair))
    for _, dims, pair in sorted(changes, key=lambda change: change[0]):
        sizes = dict(zip(dims, pair, strict=True))
        then = WORKS if _repairs_all(context, sizes) else THIS_WORKS
        words = " and ".join(f"{dim} to {new_size}" for dim, new_size in zip(dims, pair, strict=True))
        yield Suggestion((_size_change(context, sizes, words),), "set ", f": {then}")


def _repairs_all(context: Context, sizes: Mapping[type[Dim], int]) -> bool:
    """Whether no other demand is broken with these sizes, with all sizes that the other dims have."""
    combinations = _pinned(sizes, context).combinations
    affordable = context.budget.spend("verifications", len(combinations) * context.cost)
    return affordable and not any(map(refuted, combinations))


def _pairs(context: Context, atoms: Iterable[object]) -> list[tuple[type[Dim], type[Dim]]]:
    """The pairs of dims with a size each, one of them among ``atoms``, that one demand is about."""
    sized = _sized(context, atoms)
    groups = [sized, *dict.fromkeys(demand.constraint.size.atoms for demand in solvable_demands(context))]
    pairs: dict[frozenset[type[Dim]], tuple[type[Dim], type[Dim]]] = {}
    for pair in chain.from_iterable(combinations(_sized(context, group), 2) for group in groups):
        if not set(pair).isdisjoint(sized) and context.alternatives.keys().isdisjoint(pair):
            pairs.setdefault(frozenset(pair), pair)
    return list(pairs.values())


def _size_change(context: Context, sizes: Mapping[type[Dim], int], words: str) -> Change:
    if context.alternatives.keys() & sizes.keys():
        # One of several sizes of a dim changes. The baseline has that size alone: the other sizes may be wrong too.
        now = {dim: context.sizes[dim] for dim in sizes}
        return Change(words, partial(_pinned, sizes), baseline=partial(_pinned, now))
    from hfdsl.check.repair import edits  # late: it reads the user's text

    places = [
        edits.size(context.call_site, dim, context.sizes[dim], new_size)
        if context.numbers is None
        else context.numbers.size(dim, new_size)
        for dim, new_size in sizes.items()
    ]
    written = tuple(edit for edit in places if edit is not None)
    title = f"set {' and '.join(f'{dim} to {new_size}' for dim, new_size in sizes.items())}"
    return Change(words, partial(_pinned, sizes), Fix(title, written) if len(written) == len(sizes) else None)


def _pinned(sizes: Mapping[type[Dim], int], context: Context) -> Context:
    """The program with one size for each of these dims."""
    alternatives = {dim: new_sizes for dim, new_sizes in context.alternatives.items() if dim not in sizes}
    return replace(context.with_sizes(sizes), alternatives=alternatives)


class _Trial:
    """Whether other sizes repair what is ``broken`` and break nothing, with all sizes of the other dims."""

    def __init__(self, context: Context, dims: tuple[type[Dim], ...], broken: set[DemandKey]) -> None:
        self.dims, self.broken, self.budget = dims, broken, context.budget
        self.demands = [demand for demand in context.demands if demand.arithmetic and not demand.dims.isdisjoint(dims)]
        self.combinations = [combination.known_sizes for combination in context.with_this(dims[0])]
        self.cost = sum(demand.cost for demand in self.demands) * len(self.combinations)

    @cached_property
    def before(self) -> list[set[DemandKey]]:
        """The violated demands of each combination."""
        return [set(self._refuted(sizes)) for sizes in self.combinations]

    def works(self, *sizes: int) -> bool:
        """Whether these sizes repair the program."""
        new_sizes = {dim: constant(size) for dim, size in zip(self.dims, sizes, strict=True)}
        if not self.budget.spend("verifications", self.cost):
            return False
        for combination, before in zip(self.combinations, self.before, strict=True):
            if any(key in self.broken or key not in before for key in self._refuted({**combination, **new_sizes})):
                return False
        return True

    def _refuted(self, sizes: KnownSizes) -> Iterator[DemandKey]:
        """The demands on the dims that these sizes violate."""
        for demand in self.demands:
            if demand.resolved(sizes).verify(sizes) is Answer.REFUTED:
                yield demand.key
