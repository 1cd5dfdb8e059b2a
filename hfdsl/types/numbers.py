"""What counts as a number where users give one, and numbers of bytes for people.

``True`` and ``False`` are ints to Python, and never meant as such.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import TypeGuard

UNITS = ("KiB", "MiB", "GiB", "TiB")

MAX_DIVISOR = 2**16
"""Divisors up to this one are looked for, each with the number that it makes up the whole with."""


def is_count(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether this is a whole number of at least ``least``.

    >>> is_count(2), is_count(0), is_count(0, least=0), is_count(True), is_count(2.0)
    (True, False, True, False, False)
    """
    return is_number(value) and isinstance(value, int) and value >= least


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is a number.

    >>> is_number(2.5), is_number(False)
    (True, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, in order; beyond 2**32 without those that only lie between two very large ones.

    >>> divisors(12), divisors(7)
    ((1, 2, 3, 4, 6, 12), (1, 7))
    """
    small = [n for n in range(1, min(isqrt(number), MAX_DIVISOR) + 1) if not number % n]
    return tuple(sorted({*small, *(number // n for n in small)}))


def byte_amount(count: int) -> str:
    """A number of bytes for people.

    >>> byte_amount(512), byte_amount(3 * 2**20)
    ('512 B', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(UNITS))
    tenths = round(Fraction(10 * count, 1024**power))  # a float has no room for the rows of absurd sizes
    return f"{tenths // 10}.{tenths % 10} {UNITS[power - 1]}"
