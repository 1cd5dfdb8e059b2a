"""Repairs: the nearest sizes for which a program's arithmetic works out, each tried before it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush, merge
from itertools import count, islice
from math import ceil, floor, gcd, lcm

from hfdsl.types.dims import Dim, Size, constant, evaluate

SEARCH = 4096  # how many sizes are looked at on both sides
TRIALS = 64  # how many of those that meet all demands are tried against all other rules
NEAR = 64  # of two dims: how many sizes of one are looked at on both sides
BESIDE = 2  # and how many of the other for each, where its demands are linear, so that the nearest meet them


@dataclass(frozen=True, slots=True)
class Demand:
    """What must hold of a size: ``divisor`` divides it or, without one, it is at least 0 (above 0 where ``strict``)."""

    size: Size
    divisor: int | None = None
    strict: bool = False

    def met(self, dim: type[Dim], number: int) -> bool:
        """Whether it holds with this number for the one dim that the size has left."""
        return self.holds(evaluate(self.size, {dim: number}))

    def holds(self, value: Fraction) -> bool:
        """Whether it holds where the size has this value."""
        if self.divisor is not None:
            return (value / self.divisor).denominator == 1
        return value > 0 or (value == 0 and not self.strict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The numbers ``residue + k * step`` from ``least`` to ``most``: what linear demands leave of a size.

    >>> list(Choice(residue=2, step=6, most=20).upward(3, 9))
    [8, 14, 20]
    """

    residue: int = 0
    step: int = 1
    least: int = 1
    most: int | None = None

    @property
    def empty(self) -> bool:
        """Whether no number is left."""
        return next(self.upward(self.least, 1), None) is None

    def upward(self, start: int, length: int) -> Iterator[int]:
        """The first numbers from ``start`` on."""
        start = max(start, self.least)
        numbers = islice(count(start + (self.residue - start) % self.step, self.step), length)
        return (n for n in numbers if self.most is None or n <= self.most)

    def downward(self, start: int, length: int) -> Iterator[int]:
        """The last numbers down from ``start``."""
        start = start if self.most is None else min(start, self.most)
        return iter(range(start - (start - self.residue) % self.step, self.least - 1, -self.step)[:length])

    def under(self, dim: type[Dim], demand: Demand) -> Choice | None:
        """Those that meet a demand on ``dim``; None where the demand is not linear in it."""
        linear = _linear(dim, demand.size)
        if linear is None:
            return None
        factor, rest = linear
        if demand.divisor is None:
            return self._limited(factor, rest, demand.strict)
        # factor * n + rest = 0 (mod divisor), in whole numbers
        scale = lcm(factor.denominator, rest.denominator)
        a, c, modulus = int(factor * scale), int(rest * scale), demand.divisor * scale
        common = gcd(a, modulus)
        if c % common:
            return EMPTY
        period = modulus // common
        return self._congruent(-c // common * pow(a // common, -1, period), period)

    def _limited(self, factor: Fraction, rest: Fraction, strict: bool) -> Choice:
        edge = -rest / factor
        if factor > 0:
            return replace(self, least=max(self.least, floor(edge) + 1 if strict else ceil(edge)))
        last = ceil(edge) - 1 if strict else floor(edge)
        return replace(self, most=last if self.most is None else min(self.most, last))

    def _congruent(self, residue: int, period: int) -> Choice:
        """By the Chinese remainder theorem."""
        common = gcd(self.step, period)
        if (residue - self.residue) % common:
            return EMPTY
        turns = (residue - self.residue) // common * pow(self.step // common, -1, period // common)
        step = lcm(self.step, period)
        return replace(self, residue=(self.residue + self.step * turns) % step, step=step)


EMPTY = Choice(most=0)


def _linear(dim: type[Dim], size: Size) -> tuple[Fraction, Fraction] | None:
    """``size`` as factor and rest of a linear form in ``dim``."""
    terms = dict(size.terms)
    rest = terms.pop((), Fraction(0))
    factor = terms.pop(((dim, 1),), None)
    return (factor, rest) if factor is not None and not terms else None


@dataclass(frozen=True, slots=True)
class Search:
    """The search for another size of ``dim``, which is ``now``; ``tried`` says whether the program takes a size."""

    dim: type[Dim]
    now: int
    demands: Sequence[Demand]
    tried: Callable[[int], bool]

    def nearest(self) -> tuple[int, ...]:
        """The nearest size below and the nearest above that work, as far as there are any."""
        choice, others = _narrowed(self.dim, self.demands)
        sides = choice.downward(self.now - 1, SEARCH), choice.upward(self.now + 1, SEARCH)
        found = (self._first(side, others) for side in sides)
        return tuple(size for size in found if size is not None)

    def _first(self, numbers: Iterable[int], demands: Sequence[Demand]) -> int | None:
        met = (n for n in numbers if all(demand.met(self.dim, n) for demand in demands))
        return next(filter(self.tried, islice(met, TRIALS)), None)


@dataclass(frozen=True, slots=True)
class PairSearch:
    """The search for other sizes of two dims, which are ``now``; ``tried`` says whether the program takes both.

    Every number near the first size leaves linear demands on the second: so many numbers are looked at on both sides.
    """

    dims: tuple[type[Dim], type[Dim]]
    now: tuple[int, int]
    demands: Sequence[Demand]
    tried: Callable[[int, int], bool]

    def change(self, one: int, other: int) -> Fraction:
        """By what part of themselves the two sizes change, together."""
        return sum((Fraction(abs(to - now), now) for to, now in zip((one, other), self.now, strict=True)), Fraction(0))

    def nearest(self) -> tuple[int, int] | None:
        """The pair that works with the smallest change, of those that are looked at."""
        return next((pair for pair in islice(self._pairs(), TRIALS) if self.tried(*pair)), None)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """The pairs that meet all demands, the smallest change first."""
        waiting: list[tuple[Fraction, int, int]] = []
        for one, other in self._met():
            least = self.change(one, self.now[1])  # of all that follow
            while waiting and waiting[0][0] <= least:
                yield heappop(waiting)[1:]
            heappush(waiting, (self.change(one, other), one, other))
        while waiting:
            yield heappop(waiting)[1:]

    def _met(self) -> Iterator[tuple[int, int]]:
        """The pairs that meet all demands, the nearest first sizes first."""
        first, last = self.dims
        alone = {dim: [demand for demand in self.demands if demand.size.atoms == (dim,)] for dim in self.dims}
        joint = [demand for demand in self.demands if len(demand.size.atoms) > 1]
        firsts, beside = _narrowed(first, alone[first])
        seconds, others = _narrowed(last, alone[last])
        for one in _around(firsts, self.now[0], NEAR):
            fixed = [replace(d, size=d.size.substitute({first: constant(one)})) for d in joint]
            left, more = _narrowed(last, fixed, seconds)
            rest = others + more
            if all(demand.met(first, one) for demand in beside):
                for other in _around(left, self.now[1], NEAR if rest else BESIDE):
                    if all(demand.met(last, other) for demand in rest):
                        yield one, other


def _around(choice: Choice, now: int, length: int) -> Iterator[int]:
    """The numbers on both sides of one, the nearest first."""
    below, above = choice.downward(now - 1, length), choice.upward(now + 1, length)
    return merge(below, above, key=lambda number: abs(number - now))


def _narrowed(dim: type[Dim], demands: Iterable[Demand], choice: Choice | None = None) -> tuple[Choice, list[Demand]]:
    """What the linear ones of these demands leave of a dim, and the others."""
    left, others = choice or Choice(), list[Demand]()
    for demand in demands:
        narrowed = left.under(dim, demand)
        if narrowed is None:
            others.append(demand)
        else:
            left = narrowed
    return left, others


def conflict(dim: type[Dim], demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """A smallest set of demands that no size of ``dim`` meets together; empty where none was found.

    Of those that are linear in ``dim``; without any one of the set there is a size.

    >>> from hfdsl.types.dims import size
    >>> class B(Dim): ...
    >>> b = size(B)
    >>> found = conflict(B, [Demand(b, 16), Demand(b, 3), Demand(constant(8) - b)])
    >>> [(str(demand.size), demand.divisor) for demand in found]
    [('B', 16), ('-B+8', None)]
    """
    kept = list(demands)
    if not _narrowed(dim, kept)[0].empty:
        return ()
    for demand in reversed(kept):
        fewer = [other for other in kept if other is not demand]
        if _narrowed(dim, fewer)[0].empty:
            kept = fewer
    return tuple(kept)
