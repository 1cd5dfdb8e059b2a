"""Types, choices and bounds of values, from a library's table or a rule.

Types are those that the library declares and its code needs: Python computes with ``True`` as with 1, and with an
integer where a float is declared, so that these are no mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isnan
from typing import Any

from hfdsl.interop.reporting import Problem, finding, setting_fix, value_text
from hfdsl.interop.settings import Configuration, is_integer

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """The numbers from ``low`` to ``high``; ``open`` leaves out the lower end.

    >>> str(ValueBounds(0, 1, open=True)), ValueBounds(0, 1, open=True).nearest(3), ValueBounds(1).nearest(-4)
    ('above 0 and at most 1', 1, 1)
    """

    low: float = -INFINITE
    high: float = INFINITE
    open: bool = False

    def __contains__(self, number: float) -> bool:
        if isnan(number):
            return False
        return (self.low < number if self.open else self.low <= number) and number <= self.high

    def __str__(self) -> str:
        below = "" if self.high == INFINITE else f"at most {value_text(self.high)}"
        above = "" if self.low == -INFINITE else f"{'above' if self.open else 'at least'} {value_text(self.low)}"
        return " and ".join(filter(None, (above, below)))

    def nearest(self, number: float) -> float | None:
        """The nearest number within the bounds; None if there is none, as above 0."""
        if number > self.high:
            return self.high
        return None if self.open else self.low


POSITIVE, NOT_NEGATIVE = ValueBounds(0, open=True), ValueBounds(0)
FRACTION, SHARE = ValueBounds(0, 1), ValueBounds(0, 1, open=True)
AT_LEAST_1 = ValueBounds(1)


def type_problem(c: Configuration, key: str, facts: Mapping[str, Any], *, fractions: bool = False) -> Problem | None:
    """A finding (HF972) for a value of another type than the table says; ``fractions`` may stand for integers."""
    value, kind = c.value(key), facts.get("type")
    if kind not in ("int", "float") or isinstance(value, bool | int) or (value is None and facts.get("none")):
        return None
    noun = "an integer" if kind == "int" else "a number"
    if isinstance(value, float):
        if kind == "float" or fractions:
            return None
        near = round(value) if abs(value) < INFINITE else None
        return refused(c, key, f"not {noun}", near)
    return refused(c, key, f"not {noun}")


def is_number(value: object) -> bool:
    """Whether Python converts a value to a number.

    >>> is_number("1e-6"), is_number("fast"), is_number(None)
    (True, False, False)
    """
    try:
        float(value)  # type: ignore[arg-type]  # any value may be asked about
    except (TypeError, ValueError):
        return False
    return True


def choice_problem(c: Configuration, key: str, choices: Iterable[str]) -> Problem | None:
    """A finding (HF972) for a value that is not one of the choices, with the nearest of them."""
    value, words = c.value(key), tuple(choices)
    if str(value) in words:
        return None
    text = str(value)
    near = next((word for word in words if word.lower() == text.lower()), None)
    close = get_close_matches(text, words, n=1, cutoff=0.6)
    return refused(c, key, f"not one of {', '.join(words)}", near or (close[0] if close else None))


def bounds_problem(c: Configuration, key: str, bounds: ValueBounds) -> Problem | None:
    """A finding (HF972) for a number that is not within bounds, with the nearest that is."""
    value = c.value(key)
    if not isinstance(value, int | float) or value in bounds:
        return None
    near = bounds.nearest(value)
    closest = int(near) if near is not None and (is_integer(value) or near == int(near)) else near
    return refused(c, key, f"not {bounds}", closest)


def refused(c: Configuration, key: str, why: str, near: Any = None) -> Problem:
    """A finding that a library refuses a value; ``near`` is one that it takes."""
    sentence, fixes = setting_fix(c, key, near) if near is not None else ("", ())
    message = f"{key} = {value_text(c.value(key))} is {why}"
    return finding(c, "HF972", message, key, advice=(sentence,) if sentence else (), fixes=fixes)
