"""What counts as a number where users give one: ``True`` and ``False`` are ints to Python, and never meant as such."""

from __future__ import annotations

from typing import TypeGuard


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
