"""Validation of numbers that users give, and numbers formatted for messages.

``True`` and ``False`` are ints in Python; here they are never numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import isqrt, log10
from numbers import Integral
from operator import index
from reprlib import Repr
from typing import TypeGuard

from hfdsl.errors import ResourceError

UNITS = ("KiB", "MiB", "GiB", "TiB")

MAX_DIVISOR = 2**16
"""``divisors`` searches up to this one; each divisor found also yields its cofactor."""


MAX_LISTED = 12
"""How many numbers a message lists."""

MAX_COUNT = 2**63 - 1
"""The largest count: the most elements that an array can have."""


MAX_SECONDS = 2_000_000
"""The longest deadline, 23 days: libraries count waits in milliseconds, in 32 bits."""


def is_count(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether this is a whole number from ``least`` to ``MAX_COUNT``.

    >>> is_count(2), is_count(0), is_count(0, least=0), is_count(True), is_count(2.0), is_count(2**63)
    (True, False, True, False, False, False)
    """
    return is_number(value) and isinstance(value, int) and least <= value <= MAX_COUNT


def count_range(*values: object, least: int = 1) -> str:
    """Describe the range of a count, for a message about values outside of it.

    >>> count_range(0), count_range(10**400, least=0)
    ('a whole number of at least 1', 'a whole number of at most 2**63 - 1')
    """
    above = any(isinstance(value, int) and value > MAX_COUNT for value in values)
    return "a whole number of at most 2**63 - 1" if above else f"a whole number of at least {least}"


def count_limit(value: object, least: int = 1) -> str:
    """The limit of a count that a value passes, as the end of a phrase.

    >>> count_limit(0), count_limit("two"), count_limit(2**70, least=0)
    ('1 or more', '1 or more', '2**63 - 1 or less')
    """
    return "2**63 - 1 or less" if isinstance(value, int) and value > MAX_COUNT else f"{least} or more"


def is_duration(value: object) -> TypeGuard[int | float]:
    """Whether this is a positive number of seconds, not more than ``MAX_SECONDS``.

    >>> is_duration(0.5), is_duration(0), is_duration(True), is_duration(float("nan")), is_duration("30")
    (True, False, False, False, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_SECONDS


def checked_deadline(seconds: object, subject: str) -> float:
    """Validate a deadline in seconds; ``subject`` begins the message.

    Raises:
        ResourceError: HF931 if it is not a positive number.
    """
    if is_duration(seconds):
        return float(seconds)
    most = f" of at most {MAX_SECONDS}" if isinstance(seconds, (int, float)) and seconds > MAX_SECONDS else ""
    raise ResourceError("HF931", f"{subject} must be a positive number of seconds{most}, got {brief(seconds)}")


def checked_seed(seed: object, subject: str) -> int:
    """Validate a seed, also one of NumPy; ``subject`` begins the message.

    Raises:
        ResourceError: HF932 if it is not a whole number from 0 to ``MAX_COUNT``.
    """
    number = index(seed) if isinstance(seed, Integral) and not isinstance(seed, bool) else seed
    if is_count(number, least=0):
        return number
    raise ResourceError("HF932", f"{subject} is {count_range(number, least=0)}, got {brief(seed)}")


def in_digits(number: Fraction | int) -> str:
    """Format a number for a message: in digits, or by its magnitude where it has very many.

    Python itself refuses to write numbers of more than 4,300 digits.

    >>> in_digits(Fraction(8)), in_digits(Fraction(1, 2)), in_digits(-(10**5000))
    ('8', '1/2', 'about -1e5000')
    """
    if max(abs(number.numerator), number.denominator) < 10**300:
        return str(number)
    power = round(log10(abs(number.numerator)) - log10(number.denominator))
    return f"about {'-' if number < 0 else ''}1e{power}"


def join_numbers(numbers: Sequence[int], separator: str) -> str:
    """List numbers for a message; of many, the first ones, the last, and the number of those left out.

    >>> join_numbers((1, 2, 3), " or "), join_numbers(range(1, 101), ", ")
    ('1 or 2 or 3', '1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... (88 more), 100')
    """
    if len(numbers) > MAX_LISTED:
        first, last = numbers[: MAX_LISTED - 1], numbers[-1]
        left_out = f"... ({len(numbers) - MAX_LISTED:,} more)"
        return separator.join([*map(str, first), left_out, str(last)])
    return separator.join(map(str, numbers))


class _BoundedRepr(Repr):
    """``repr`` of bounded length."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 400
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 40

    def repr_int(self, x: int, level: int) -> str:
        """A number of many digits as its magnitude."""
        return in_digits(x)


brief = _BoundedRepr().repr
"""Format a value for a message: ``repr`` of bounded length."""


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
    """Format a number of bytes.

    >>> byte_amount(512), byte_amount(3 * 2**20)
    ('512 B', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(UNITS))
    tenths = round(Fraction(10 * count, 1024**power))  # a float has no room for the rows of absurd sizes
    return f"{tenths // 10}.{tenths % 10} {UNITS[power - 1]}"


def byte_amounts(counts: Mapping[str, int]) -> str:
    """Format numbers of bytes, each after its name.

    >>> byte_amounts({"weights": 3 * 2**20, "gradients": 512})
    'weights 3.0 MiB, gradients 512 B'
    """
    return ", ".join(f"{name} {byte_amount(count)}" for name, count in counts.items())
