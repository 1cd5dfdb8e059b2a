"""Names of a function: local ones hide those of its module, imports have full names, and closures are looked into."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from hfdsl.check.bodies.names import MISSING, imported_names, local_names, parameter_names, value_of
from hfdsl.check.bodies.syntax import callee, definition_of
from hfdsl.rl import advantages


def scale(value: float) -> float:
    """A function of this module."""
    return 2 * value


def makes_names(first: float, *rest: float, last: float = 0.0) -> object:
    """A body with every kind of local name."""
    import json as encoder
    import os.path
    from math import sqrt as root

    total = [item for item in rest if item]
    try:
        result = root(first + last + scale(len(total)))
    except ValueError as error:
        return error
    match result:
        case [*parts]:
            return parts
        case other:
            return encoder.dumps(other) + os.path.sep


def calls_own_function(value: float) -> float:
    """A body that hides a function of its module behind its own."""

    def scale(value: float) -> float:
        return value

    return scale(value)


def calls_parameter(scale: Callable[[float], float], value: float) -> float:
    """A body that hides a function of its module behind a parameter."""
    return scale(value)


def calls_module(value: float) -> float:
    """A body that calls a function of its module."""
    return scale(value)


def calls_imported(value: Any) -> Any:
    """A body that imports what it calls."""
    from hfdsl.rl.advantages import group_centered as advantages_of

    return advantages_of(value, 2)


def calls_of_imported_module(value: Any) -> Any:
    """A body that imports the module of what it calls."""
    import hfdsl.rl.advantages as formulas

    return formulas.group_centered(value, 2)


def closure() -> Callable[[float], float]:
    """A body that calls a function of the function around it."""

    def triple(value: float) -> float:
        return 3 * value

    def body(value: float) -> float:
        return triple(value)

    return body


def _called(body: Callable[..., Any]) -> object:
    definition = definition_of(body)
    assert definition is not None
    result = next(node.value for node in reversed(definition.body) if isinstance(node, ast.Return))
    assert isinstance(result, ast.Call)
    return callee(body, definition, result)


def test_the_kinds_of_names_of_a_function() -> None:
    definition = definition_of(makes_names)
    assert definition is not None
    assert parameter_names(definition) == ("first", "rest", "last")
    assert imported_names(definition) == {"encoder": "json", "root": "math.sqrt"}
    assert local_names(definition) == {
        *("first", "rest", "last", "encoder", "os", "root", "total", "item", "result", "error", "parts", "other")
    }


@pytest.mark.parametrize(
    ("body", "function"),
    [
        (calls_module, scale),
        (calls_own_function, None),
        (calls_parameter, None),
        (calls_imported, advantages.group_centered),
        (calls_of_imported_module, advantages.group_centered),
    ],
)
def test_the_function_that_a_body_calls(body: Callable[..., Any], function: object) -> None:
    assert _called(body) is function


def test_the_function_of_a_closure() -> None:
    body = closure()
    assert getattr(_called(body), "__name__", None) == "triple"
    assert value_of(body, "triple") is _called(body)
    assert value_of(body, "sorted") is sorted
    assert value_of(body, "nowhere") is MISSING
