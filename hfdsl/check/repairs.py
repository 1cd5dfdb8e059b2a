"""Repairs: the nearest sizes for which a program's row arithmetic works out, each tried before it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import gcd, lcm
from typing import TypeAlias

from hfdsl.types.dims import Dim, Size, constant

SEARCH = 4096  # how far a size is looked for on both sides, where it is not simply a multiple
TRIALS = 64  # how many of those that divide are tried against all other rules

Demand: TypeAlias = tuple[Size, int]
"""A size, in one unknown dim, and the number that must divide it."""


@dataclass(frozen=True, slots=True)
class Search:
    """The search for another size of ``dim``, which is ``now``; ``tried`` says whether the program takes a size."""

    dim: type[Dim]
    now: int
    demands: Sequence[Demand]
    tried: Callable[[int], bool]

    def nearest(self) -> tuple[int, ...]:
        """The nearest size below and the nearest above that work, as far as there are any."""
        below, above = (next(filter(self.tried, islice(side, TRIALS)), None) for side in self._sides())
        return tuple(size for size in (below, above) if size is not None)

    def _sides(self) -> tuple[Iterator[int], Iterator[int]]:
        step = self._step()
        if step is not None:
            first = (self.now - 1) // step * step
            return iter(range(first, 0, -step)), iter(
                range((self.now // step + 1) * step, self.now + SEARCH * step, step)
            )
        return self._divided(range(self.now - 1, max(0, self.now - SEARCH), -1)), self._divided(
            range(self.now + 1, self.now + SEARCH)
        )

    def _step(self) -> int | None:
        """The number that the dim must be a multiple of, where every size is a plain multiple or fraction of it."""
        step = 1
        for size, divisor in self.demands:
            if len(size.terms) != 1 or size.terms[0][0] != ((self.dim, 1),):
                return None
            factor = size.terms[0][1]
            whole = divisor * factor.denominator
            step = lcm(step, whole // gcd(whole, factor.numerator))
        return step

    def _divided(self, numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            sizes = {self.dim: constant(number)}
            values = [(size.substitute(sizes).value, divisor) for size, divisor in self.demands]
            if all(value is not None and (value / divisor).denominator == 1 for value, divisor in values):
                yield number
