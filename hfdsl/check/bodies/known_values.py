"""Known values: numbers and other plain data that bodies compute with, where a check knows them.

>>> computed("div", 1, 0.5), computed("div", 1, 0), computed("lt", 1, 2)
(Known(value=2.0), None, Known(value=True))
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, Literal

from hfdsl.check.bodies.names import MISSING
from hfdsl.check.bodies.role_code import is_plain

ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
"""By operation the function of Python that computes it."""


@dataclass(frozen=True, slots=True)
class Known:
    """A number, or other plain data such as a configuration."""

    value: Any


def plain(value: object) -> Known | None:
    """A value that is plain data."""
    return Known(value) if value is not MISSING and is_plain(value) else None


def computed(function: str, left: Any, right: Any) -> Known | None:
    """The result of arithmetic with two numbers, or of their comparison."""
    are_numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
    if function not in ARITHMETIC or not are_numbers or (function == "div" and right == 0):
        return None
    return Known(ARITHMETIC[function](left, right))


def applied(function: Literal["float", "max", "min"], values: Sequence[object]) -> Known | None:
    """The result of a function of Python on one number, or on two.

    >>> applied("max", [Known(0.5), Known(1e-5)])
    Known(value=0.5)
    """
    numbers = [value.value for value in values if isinstance(value, Known) and isinstance(value.value, (int, float))]
    if len(numbers) != len(values) or len(numbers) != (1 if function == "float" else 2):
        return None
    functions: Mapping[str, Callable[..., Any]] = {"float": float, "max": max, "min": min}
    return Known(functions[function](*numbers))


def constructor_arguments(
    constructor: FunctionType, given: tuple[Sequence[Any], Mapping[str, Any]] | None
) -> Mapping[str, Any]:
    """Arguments of a constructor by parameter, with its defaults; none if they are not known."""
    try:
        bound = inspect.signature(constructor).bind(None, *given[0], **given[1]) if given is not None else None
    except TypeError:  # HF516 reports it
        return {}
    if bound is None:
        return {}
    bound.apply_defaults()
    return bound.arguments
