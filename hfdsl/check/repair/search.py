"""Repairs: the nearest sizes for which a program's arithmetic works out, each tried before it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count, islice
from math import ceil, floor, gcd, lcm

from hfdsl.types.dims import Dim, Size, constant

SEARCH = 4096  # how many sizes are looked at on both sides, where a demand is not linear
TRIALS = 64  # how many of those that meet all demands are tried against all other rules


@dataclass(frozen=True, slots=True)
class Demand:
    """What must hold of a size: ``divisor`` divides it or, without one, it is at least 0 (above 0 where ``strict``)."""

    size: Size
    divisor: int | None = None
    strict: bool = False

    def met(self, dim: type[Dim], number: int) -> bool:
        """Whether it holds with this number for the one dim that the size has left."""
        value = self.size.substitute({dim: constant(number)}).value
        if value is None:
            return False
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
            return replace(self, least=1, most=0)
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
            return replace(self, least=1, most=0)
        turns = (residue - self.residue) // common * pow(self.step // common, -1, period // common)
        step = lcm(self.step, period)
        return replace(self, residue=(self.residue + self.step * (turns % (period // common))) % step, step=step)


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
        choice, others = Choice(), list[Demand]()
        for demand in self.demands:
            narrowed = choice.under(self.dim, demand)
            if narrowed is None:
                others.append(demand)
            else:
                choice = narrowed
        length = SEARCH if others else TRIALS
        sides = choice.downward(self.now - 1, length), choice.upward(self.now + 1, length)
        found = (self._first(side, others) for side in sides)
        return tuple(size for size in found if size is not None)

    def _first(self, numbers: Iterable[int], demands: Sequence[Demand]) -> int | None:
        met = (n for n in numbers if all(demand.met(self.dim, n) for demand in demands))
        return next(filter(self.tried, islice(met, TRIALS)), None)


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
    kept = [demand for demand in demands if Choice().under(dim, demand) is not None]
    if not _left(dim, kept).empty:
        return ()
    for demand in reversed(kept):
        fewer = [other for other in kept if other is not demand]
        if _left(dim, fewer).empty:
            kept = fewer
    return tuple(kept)


def _left(dim: type[Dim], demands: Sequence[Demand]) -> Choice:
    choice = Choice()
    for demand in demands:
        choice = choice.under(dim, demand) or choice
    return choice
