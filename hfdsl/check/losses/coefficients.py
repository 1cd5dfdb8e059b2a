"""Coefficients of a policy's loss: may one be negative, so that its term has the other sign than its place says?

A worked example, of a role whose loss adds the entropy times ``self.config.entropy_coef``::

    self.config = Config()                              a class with entropy_coef = -0.01
    self.config = CONFIG                                a namespace of the module with such a number
    self.entropy_coef = sign * 0.01                     -0.01, where sign is known
    self.entropy_coef = negated(0.01)                   not known

Numbers that a role is placed with, and defaults, count whatever their name is.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, Final

from hfdsl.check.bodies.calls import defaults
from hfdsl.check.bodies.known_values import Known
from hfdsl.check.bodies.names import last_name, value_of
from hfdsl.check.bodies.role_code import ReadFunction, code_of, is_of_user, own_functions
from hfdsl.check.bodies.syntax import resolved
from hfdsl.check.bodies.temperatures import known_attributes
from hfdsl.check.losses.names import COEFFICIENT
from hfdsl.check.syntax_trees import nodes_of

COUNTS: Final = re.compile(r"(.*_)?(scale|steps|temperature)s?(_.*)?")
"""The names of numbers that are differences without being negative."""

PLAIN: Final = frozenset(
    {"Parameter", "abs", "as_tensor", "exp", "float", "full", "get", "getattr", "int", "log", "max", "min", "ones"}
    | {"pop", "sqrt", "tensor"}
)
"""Functions that make no number negative."""


def may_have_negative_coefficients(role: type, given: tuple[Sequence[Any], Mapping[str, Any]] | None) -> bool:
    """Whether a coefficient of a role may be negative: a number that it is given, a default, or what its code sets."""
    constructor = inspect.unwrap(role.__init__)  # type: ignore[misc]
    defaults = [getattr(constructor, "__defaults__", None), getattr(constructor, "__kwdefaults__", None)]
    if any(number < 0 for number in _numbers([given, defaults, dict(vars(role))])):
        return True
    known = {name: value.value for name, value in known_attributes(role, given).items() if isinstance(value, Known)}
    if _has_a_negative(known):
        return True
    code = code_of(role)
    own = own_functions(code, role)
    return any(
        _sets_a_negative(function, known if function in own else {})
        or _names_a_negative(function)
        or _gives_a_negative(function)
        for function in code.all_functions
    )


def _numbers(values: object, depth: int = 4) -> Iterator[float]:
    """The numbers in lists, tables, dataclasses and users' objects."""
    if isinstance(values, (int, float)):
        yield values
    parts: Iterable[object] = ()
    if isinstance(values, Mapping):
        parts = values.values()
    elif isinstance(values, (list, tuple)):
        parts = values
    elif is_dataclass(values) and not isinstance(values, type):
        parts = [getattr(values, field.name, None) for field in fields(values)]
    elif is_of_user(type(values).__module__):
        parts = getattr(values, "__dict__", {}).values()
    for part in parts if depth else ():
        yield from _numbers(part, depth - 1)


def _has_a_negative(values: Mapping[str, object]) -> bool:
    """Whether a number under the name of a coefficient is negative."""
    return any(
        isinstance(value, (int, float)) and value < 0 and COEFFICIENT.fullmatch(name) for name, value in values.items()
    )


def _names_a_negative(function: ReadFunction) -> bool:
    """Whether a class or a namespace that code names has a negative coefficient."""
    for name in function.names:
        value = value_of(function.body, name)
        owners: Iterable[object] = (value,) if isinstance(value, SimpleNamespace) or is_dataclass(value) else ()
        owners = value.__mro__ if isinstance(value, type) else owners
        if any(_has_a_negative(getattr(owner, "__dict__", {})) for owner in owners):
            return True
    return False


def _gives_a_negative(function: ReadFunction) -> bool:
    """Whether code makes an object with a coefficient that may be negative, or a function has one by default."""
    values, negative = [*defaults(function.definition)], _negative_names(function)
    for node in nodes_of(function.definition):
        kind = resolved(function.body, function.definition, node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(kind, type) and is_of_user(kind.__module__):
            values += [(str(keyword.arg), keyword.value) for keyword in node.keywords]
            if any(_has_minus(argument) or last_name(argument) in negative for argument in node.args):
                return True
    return any(COEFFICIENT.fullmatch(name) and _may_be_negative(name, value, negative) for name, value in values)


def _negative_names(function: ReadFunction) -> set[str]:
    """The names that code sets to what has a minus."""
    return {
        node.targets[0].id
        for node in nodes_of(function.definition)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _has_minus(node.value)
    }


def _sets_a_negative(function: ReadFunction, known: Mapping[str, object]) -> bool:
    """Whether code sets a coefficient that is not ``known`` to what may be negative, or a property returns that."""
    nodes = [*nodes_of(function.definition)]
    negative = _negative_names(function)
    values = list[tuple[str, ast.expr]]()
    for node in nodes:
        match node:
            case ast.Assign([ast.Attribute(_, name)], value) | ast.AnnAssign(
                ast.Attribute(_, name), _, ast.expr() as value
            ):
                is_module = isinstance(value, ast.Call) and function.path(value.func).startswith("torch.nn.")
                values += [(name, value)] if name not in known and not is_module else []
            case ast.Return(ast.expr() as value) if "property" in map(last_name, function.definition.decorator_list):
                values.append((function.definition.name, value))
    return any(COEFFICIENT.fullmatch(name) and _may_be_negative(name, value, negative) for name, value in values)


def _has_minus(value: ast.expr) -> bool:
    return any(isinstance(node, ast.USub) for node in nodes_of(value))


def _may_be_negative(name: str, value: ast.expr, negative: AbstractSet[str]) -> bool:
    """Whether a number is written with a minus, or as what may be negative; ``negative`` are names of such numbers."""
    nodes = [*nodes_of(value)]
    if _has_minus(value) or any(last_name(node) in negative for node in nodes):
        return True
    is_bounded = isinstance(value, ast.Call) and last_name(value.func) == "max"
    has_difference = any(isinstance(node, ast.Sub) for node in nodes) and not is_bounded
    calls = {last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    return not COUNTS.fullmatch(name) and (has_difference or not calls <= PLAIN)
