"""The search for the nearest sizes with which a program's demands hold, each tried before it is suggested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush, merge
from itertools import islice, takewhile

from hfdsl.check.sizes.constraints import Constraint, SizeSet
from hfdsl.types.dims import Dim, constant

MAX_SIZES = 4096  # how many sizes are examined on both sides of the one that is given
MAX_TRIED = 64  # how many of those that meet all constraints are tried against all other rules
MAX_FIRST = 64  # of two dims: how many sizes of the first are examined on both sides
MAX_SECOND = 2  # and how many of the second for each, where its constraints are linear, so that the nearest meet them
SUBSTITUTION = 64  # how many evaluations of a constraint take as long as putting a size into it


@dataclass(frozen=True, slots=True)
class Search:
    """The search for another size of ``dim``, which is ``now``; ``tried`` says whether a size works.

    ``spend`` is called with a number of evaluations before they are made; the search ends where it refuses.
    """

    dim: type[Dim]
    now: int
    constraints: Sequence[Constraint]
    tried: Callable[[int], bool]
    spend: Callable[[int], bool] = lambda _: True

    def nearest(self) -> tuple[int, ...]:
        """The nearest size below and the nearest above that work, if any."""
        sizes, others = _narrowed(self.dim, self.constraints)
        predicates = [constraint.predicate(self.dim) for constraint in others]
        sides = sizes.downward(self.now - 1, MAX_SIZES), sizes.upward(self.now + 1, MAX_SIZES)
        firsts = (self._first(side, predicates) for side in sides)
        return tuple(size for size in firsts if size is not None)

    def _first(self, sizes: Iterable[int], predicates: Sequence[Callable[[int], bool]]) -> int | None:
        affordable = takewhile(lambda _: self.spend(1 + len(predicates)), sizes)
        satisfying = (size for size in affordable if all(holds(size) for holds in predicates))
        return next(filter(self.tried, islice(satisfying, MAX_TRIED)), None)


@dataclass(frozen=True, slots=True)
class PairSearch:
    """The search for other sizes of two dims, which are ``now``; ``tried`` says whether both work.

    With each number near the first size, the joint constraints are constraints on the second one alone.
    """

    dims: tuple[type[Dim], type[Dim]]
    now: tuple[int, int]
    constraints: Sequence[Constraint]
    tried: Callable[[int, int], bool]
    spend: Callable[[int], bool] = lambda _: True

    def change(self, first: int, second: int) -> Fraction:
        """The sum of the relative changes of the two sizes."""
        return sum(
            (Fraction(abs(to - now), now) for to, now in zip((first, second), self.now, strict=True)), Fraction(0)
        )

    def nearest(self) -> tuple[int, int] | None:
        """The pair with the smallest change that works, of those that are examined."""
        return next((pair for pair in islice(self._pairs(), MAX_TRIED) if self.tried(*pair)), None)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """The pairs that meet all constraints, the smallest change first."""
        waiting: list[tuple[Fraction, int, int]] = []
        for first, second in self._met():
            # Pairs come by the change of their first size: none that follows changes less than that.
            least = self.change(first, self.now[1])
            while waiting and waiting[0][0] <= least:
                yield heappop(waiting)[1:]
            heappush(waiting, (self.change(first, second), first, second))
        while waiting:
            yield heappop(waiting)[1:]

    def _met(self) -> Iterator[tuple[int, int]]:
        """The pairs that meet all constraints, ordered by how near their first size is."""
        first_dim, second_dim = self.dims
        alone = {dim: [c for c in self.constraints if c.size.atoms == (dim,)] for dim in self.dims}
        joint = [constraint for constraint in self.constraints if len(constraint.size.atoms) > 1]
        firsts, first_constraints = _narrowed(first_dim, alone[first_dim])
        seconds, second_constraints = _narrowed(second_dim, alone[second_dim])
        first_predicates = [constraint.predicate(first_dim) for constraint in first_constraints]
        second_predicates = [constraint.predicate(second_dim) for constraint in second_constraints]
        for first in _around(firsts, self.now[0], MAX_FIRST):
            if not self.spend(1 + SUBSTITUTION * len(joint)):
                return
            if all(holds(first) for holds in first_predicates):
                fixed = [replace(c, size=c.size.substitute({first_dim: constant(first)})) for c in joint]
                second_sizes, joint_constraints = _narrowed(second_dim, fixed, seconds)
                predicates = [
                    *second_predicates,
                    *(constraint.predicate(second_dim) for constraint in joint_constraints),
                ]
                for second in _around(second_sizes, self.now[1], MAX_FIRST if predicates else MAX_SECOND):
                    if not self.spend(1 + len(predicates)):
                        return
                    if all(holds(second) for holds in predicates):
                        yield first, second


def _around(sizes: SizeSet, now: int, length: int) -> Iterator[int]:
    """The numbers of a set on both sides of ``now``, the nearest first."""
    below, above = sizes.downward(now - 1, length), sizes.upward(now + 1, length)
    return merge(below, above, key=lambda number: abs(number - now))


def _narrowed(
    dim: type[Dim], constraints: Iterable[Constraint], sizes: SizeSet | None = None
) -> tuple[SizeSet, list[Constraint]]:
    """Apply the linear constraints to a dim; return the remaining sizes and the other constraints."""
    remaining, others = sizes or SizeSet(), list[Constraint]()
    for constraint in constraints:
        narrowed = remaining.satisfying(dim, constraint)
        if narrowed is None:
            others.append(constraint)
        else:
            remaining = narrowed
    return remaining, others


def conflict(dim: type[Dim], constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """A minimal set of constraints that no size of ``dim`` meets together; empty if there is none.

    Only constraints linear in ``dim`` take part; without any one of the set there is a size.

    >>> from hfdsl.types.dims import size
    >>> class B(Dim): ...
    >>> b = size(B)
    >>> clash = conflict(B, [Constraint(b, 16), Constraint(b, 3), Constraint(constant(8) - b)])
    >>> [(str(constraint.size), constraint.divisor) for constraint in clash]
    [('B', 16), ('-B+8', None)]
    """
    core, remaining, candidates = list[int](), SizeSet(), len(constraints)
    while not remaining.empty:
        sizes = remaining
        for place in range(candidates):
            sizes = sizes.satisfying(dim, constraints[place]) or sizes
            if sizes.empty:
                break
        else:
            return ()
        # The conflict begins with this constraint, so that it is part of it: the others are among those before.
        core.append(place)
        remaining, candidates = remaining.satisfying(dim, constraints[place]) or remaining, place
    return tuple(constraints[place] for place in sorted(core))
