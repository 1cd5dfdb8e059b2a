"""The search for the nearest sizes with which a program's demands hold, each tried before it is suggested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush, merge
from itertools import islice

from hfdsl.check.constraints import Constraint, SizeSet
from hfdsl.types.dims import Dim, constant

SEARCH = 4096  # how many sizes are examined on both sides
TRIALS = 64  # how many of those that meet all constraints are tried against all other rules
NEAR = 64  # of two dims: how many sizes of one are examined on both sides
BESIDE = 2  # and how many of the other for each, where its constraints are linear, so that the nearest meet them


@dataclass(frozen=True, slots=True)
class Search:
    """The search for another size of ``dim``, which is ``now``; ``tried`` says whether a size works."""

    dim: type[Dim]
    now: int
    constraints: Sequence[Constraint]
    tried: Callable[[int], bool]

    def nearest(self) -> tuple[int, ...]:
        """The nearest size below and the nearest above that work, if any."""
        sizes, others = _narrowed(self.dim, self.constraints)
        sides = sizes.downward(self.now - 1, SEARCH), sizes.upward(self.now + 1, SEARCH)
        firsts = (self._first(side, others) for side in sides)
        return tuple(size for size in firsts if size is not None)

    def _first(self, numbers: Iterable[int], constraints: Sequence[Constraint]) -> int | None:
        satisfying = (n for n in numbers if all(constraint.met(self.dim, n) for constraint in constraints))
        return next(filter(self.tried, islice(satisfying, TRIALS)), None)


@dataclass(frozen=True, slots=True)
class PairSearch:
    """The search for other sizes of two dims, which are ``now``; ``tried`` says whether both work.

    With each number near the first size, the joint constraints are constraints on the second one alone.
    """

    dims: tuple[type[Dim], type[Dim]]
    now: tuple[int, int]
    constraints: Sequence[Constraint]
    tried: Callable[[int, int], bool]

    def change(self, first: int, second: int) -> Fraction:
        """The sum of the relative changes of the two sizes."""
        return sum(
            (Fraction(abs(to - now), now) for to, now in zip((first, second), self.now, strict=True)), Fraction(0)
        )

    def nearest(self) -> tuple[int, int] | None:
        """The pair with the smallest change that works, of those that are examined."""
        return next((pair for pair in islice(self._pairs(), TRIALS) if self.tried(*pair)), None)

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
        firsts, beside = _narrowed(first_dim, alone[first_dim])
        seconds, others = _narrowed(second_dim, alone[second_dim])
        for first in _around(firsts, self.now[0], NEAR):
            fixed = [replace(c, size=c.size.substitute({first_dim: constant(first)})) for c in joint]
            left, more = _narrowed(second_dim, fixed, seconds)
            nonlinear = others + more
            if all(constraint.met(first_dim, first) for constraint in beside):
                for second in _around(left, self.now[1], NEAR if nonlinear else BESIDE):
                    if all(constraint.met(second_dim, second) for constraint in nonlinear):
                        yield first, second


def _around(sizes: SizeSet, now: int, length: int) -> Iterator[int]:
    """The numbers of a set on both sides of ``now``, the nearest first."""
    below, above = sizes.downward(now - 1, length), sizes.upward(now + 1, length)
    return merge(below, above, key=lambda number: abs(number - now))


def _narrowed(
    dim: type[Dim], constraints: Iterable[Constraint], sizes: SizeSet | None = None
) -> tuple[SizeSet, list[Constraint]]:
    """What the linear ones of these constraints leave of a dim, and the others."""
    left, others = sizes or SizeSet(), list[Constraint]()
    for constraint in constraints:
        narrowed = left.satisfying(dim, constraint)
        if narrowed is None:
            others.append(constraint)
        else:
            left = narrowed
    return left, others


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
    kept = list(constraints)
    if not _narrowed(dim, kept)[0].empty:
        return ()
    for constraint in reversed(kept):
        fewer = [other for other in kept if other is not constraint]
        if _narrowed(dim, fewer)[0].empty:
            kept = fewer
    return tuple(kept)
