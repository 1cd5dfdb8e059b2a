"""Constraints: arithmetic on one size, and the sizes of a dim that satisfy it.

A worked example. A method ``update`` is declared ``rows=hf.Grouped(2)`` (two rows of one prompt stay together) and
``requires("B <= 6")``, and DP_PROTO splits its B rows over two ranks::

    B = 4        rank 0 | a0 a1 |     rank 1 | b0 b1 |         one whole group each
    B = 5        five rows do not even make whole groups
    B = 6        rank 0 | a0 a1 b0 |  rank 1 | b1 c0 c1 |      whole groups, but rank 0 gets one and a half

What the program demands of B, and what is left of all sizes after each demand::

    constraint                     reads         why                            step  residue  least  most
                                                                                   1        0      1     -
    Constraint(B, 2)               B % 2 == 0    whole groups of 2                 2        0      1     -
    Constraint(B, 4)               B % 4 == 0    whole groups in both chunks       4        0      1     -
    Constraint(6 - B)              6 - B >= 0    the requirement                   4        0      1     6

>>> from hfdsl.types.dims import constant, size
>>> class B(Dim): ...
>>> left = SizeSet()
>>> for constraint in [Constraint(size(B), 2), Constraint(size(B), 4), Constraint(constant(6) - size(B))]:
...     left = left.satisfying(B, constraint) or left
>>> left
SizeSet(residue=0, step=4, least=1, most=6)

With ``dims={B: 5}`` the check reports the first demand that fails (HF313: "B = 5 rows do not make whole groups of 2")
and searches this set from 5 in both directions: 4 is below, and nothing is above.

>>> list(left.downward(4, length=9)), list(left.upward(6, length=9))
([4], [])

It puts 4 in the place of 5 and runs all rules again. This finding is gone and none is new, so it suggests "set B to 4:
every split and requirement then holds".

Why this is right. Row counts are polynomials in the dims, because the operations of a dataflow only multiply, cut and
add rows. In one dim, with numbers for the others, nearly all are linear: ``a * n + c``. That ``d`` divides that is a
congruence, which has no solution or leaves one residue class modulo ``d / gcd(a, d)``. Two residue classes meet in one
class or not at all (the Chinese remainder theorem), and an inequality moves one end. So what linear constraints leave
is always a ``SizeSet``, exactly: one that is empty proves that no size works (HF318), and a search in it misses no
size. A constraint that is not linear (``B * B``) narrows nothing; it is evaluated for each candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count, islice
from math import ceil, floor, gcd, lcm

from hfdsl.types.dims import Atom, Dim, Size


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on a size: ``divisor`` divides it or, without one, it is at least 0 (above 0 if ``strict``)."""

    size: Size
    divisor: int | None = None
    strict: bool = False

    def met(self, dim: type[Dim], number: int) -> bool:
        """Whether it holds with this number for the one dim that the size has left."""
        return self.predicate(dim)(number)

    def predicate(self, dim: type[Dim]) -> Callable[[int], bool]:
        """``met`` for many numbers, in whole numbers: with n / 6 + 2 / n it looks at (n * n + 12) / (6 * n)."""
        powers = {sum(power for atom, power in monomial if atom is dim): factor for monomial, factor in self.size.terms}
        lowest, highest = min((0, *powers)), max((0, *powers))
        scale = lcm(*(factor.denominator for factor in powers.values()))
        factors = [int(powers.get(power, 0) * scale) for power in range(highest, lowest - 1, -1)]
        divisor, strict = self.divisor, self.strict

        def holds(number: int) -> bool:
            value = 0
            for factor in factors:
                value = value * number + factor
            if divisor is not None:
                below: int = number**-lowest
                return value % (divisor * scale * below) == 0
            return value > 0 or (value == 0 and not strict)

        return holds

    def holds(self, value: Fraction) -> bool:
        """Whether it holds where the size has this value."""
        if self.divisor is not None:
            return (value / self.divisor).denominator == 1
        return value > 0 or (value == 0 and not self.strict)


@dataclass(frozen=True, slots=True)
class SizeSet:
    """The numbers ``residue + k * step`` from ``least`` to ``most``: the sizes of a dim that linear constraints leave.

    >>> list(SizeSet(residue=2, step=6, most=20).upward(3, 9))
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

    def satisfying(self, dim: Atom, constraint: Constraint) -> SizeSet | None:
        """The sizes that satisfy a constraint on ``dim``; None if it is not linear in it."""
        linear = _linear(dim, constraint.size)
        if linear is None:
            return None
        factor, offset = linear
        if constraint.divisor is None:
            return self._limited(factor, offset, constraint.strict)
        # factor * n + offset = 0 (mod divisor): times the common denominator, a congruence of whole numbers.
        scale = lcm(factor.denominator, offset.denominator)
        a, c, modulus = int(factor * scale), int(offset * scale), constraint.divisor * scale
        common = gcd(a, modulus)
        if c % common:
            return EMPTY
        period = modulus // common
        return self._congruent(-c // common * pow(a // common, -1, period), period)

    def _limited(self, factor: Fraction, offset: Fraction, strict: bool) -> SizeSet:
        edge = -offset / factor
        if factor > 0:
            return replace(self, least=max(self.least, floor(edge) + 1 if strict else ceil(edge)))
        last = ceil(edge) - 1 if strict else floor(edge)
        return replace(self, most=last if self.most is None else min(self.most, last))

    def _congruent(self, residue: int, period: int) -> SizeSet:
        """By the Chinese remainder theorem."""
        common = gcd(self.step, period)
        if (residue - self.residue) % common:
            return EMPTY
        turns = (residue - self.residue) // common * pow(self.step // common, -1, period // common)
        step = lcm(self.step, period)
        return replace(self, residue=(self.residue + self.step * turns) % step, step=step)


EMPTY = SizeSet(most=0)


def _linear(dim: Atom, size: Size) -> tuple[Fraction, Fraction] | None:
    """``size`` as factor and offset of a linear form in ``dim``."""
    terms = dict(size.terms)
    offset = terms.pop((), Fraction(0))
    factor = terms.pop(((dim, 1),), None)
    return (factor, offset) if factor is not None and not terms else None
