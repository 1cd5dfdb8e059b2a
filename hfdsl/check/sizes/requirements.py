"""Requirements: the language of ``hf.requires``, arithmetic and comparisons over dims and config fields."""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from hfdsl.check.constructor_types import misfits, parameters
from hfdsl.check.syntax_trees import COMPARISON_OPERATORS, nodes_of
from hfdsl.deploy.deployment import Placement
from hfdsl.errors import DefinitionError
from hfdsl.protocols.mesh import AXIS_SIZE, Mesh
from hfdsl.types.dims import Answer, Size
from hfdsl.types.numbers import in_digits
from hfdsl.types.similar_names import closest

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}

MESH_SIZES: Mapping[str, Callable[[Mesh], int]] = {
    **{axis: size for axis, size in AXIS_SIZE.items() if axis != "rank"},
    "world_size": AXIS_SIZE["rank"],
}
"""The mesh sizes that a requirement may name."""


MAX_NUMBER = 10**4000
"""Python refuses to write numbers of more than 4,300 digits, and messages write the sums of a requirement."""

MAX_NESTING = 8
"""The maximum nesting of configs, since a config may contain itself."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a requirement: sizes by dim name, numbers of the call, arguments of the constructor, mesh sizes.

    ``fields`` has the numbers of the call and of the config; ``config`` is false for a function, which has none.
    """

    sizes: Mapping[str, Size]
    placement: Placement[Any] | None
    config: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)

    def lookup(self, name: str) -> Fraction | None:
        """The number behind a name, None if it is a dim without a known size.

        Raises:
            DefinitionError: HF323 for a name that is neither, or a number of a config above ``MAX_NUMBER``.
        """
        if name in self.sizes:
            return self.sizes[name].value
        if (number := _number(self.fields.get(name))) is not None:
            if abs(number) > MAX_NUMBER:
                above = "a requirement is over numbers of at most 4,000 digits"
                raise DefinitionError("HF323", f"'{name}' of the role's config is {in_digits(number)}: {above}")
            return number
        if self.placement and name in MESH_SIZES:
            return Fraction(MESH_SIZES[name](self.placement.mesh))
        if self.placement is None and self.config:
            return None
        kinds = (
            "neither a dim, a number of the role's config nor a size of its mesh"
            if self.config
            else "no dim of the program"
        )
        candidates = [*self.sizes, *numbers(self.fields), *(MESH_SIZES if self.config else ())]
        raise DefinitionError("HF323", f"'{name}' is {kinds}; {closest(name, candidates)}")


def numbers(fields: Mapping[str, Any]) -> list[str]:
    """The fields of a config that are numbers, each by its shortest name."""
    shortest = (name for name in fields if name.partition(".")[2] not in fields)
    return [name for name in shortest if _number(fields[name]) is not None]


def _number(value: object) -> Fraction | None:
    """The value of a constant or a field, if it is a finite number."""
    if isinstance(value, Integral):
        return Fraction(int(value))
    return Fraction(float(value)) if isinstance(value, Real) and math.isfinite(value) else None


def config_fields(placement: Placement[Any]) -> dict[str, Any] | None:
    """The names that a placement defines: the constructor's arguments, and the fields of the configs among them.

    A field is named by the end of its path: ``config.optimizer.warmup`` as ``optimizer.warmup`` or ``warmup``. Of
    several fields of one name the least nested is meant; where those differ, only a longer name says which. None if
    the constructor does not take the arguments.
    """
    try:
        role: type = placement.role
        bound = parameters(role).bind(*placement.args, **placement.kwargs)
    except TypeError:
        return None
    if next(misfits(placement), None) is not None:
        return None
    bound.apply_defaults()
    arguments = {(name,): value for name, value in _unpacked(parameters(role), bound.arguments)}
    first: dict[tuple[str, ...], Any] = {
        (name, key): entry for (name,), value in arguments.items() for key, entry in _fields(value).items()
    }
    fields = {path[-1]: value for path, value in (first | arguments).items()}  # an argument hides a field of its name
    level = first
    while level and len(next(iter(level))) < MAX_NESTING:
        names = [(".".join(path[start:]), value) for path, value in level.items() for start in range(len(path))]
        values = dict(names)
        unclear = {name for name, value in names if values[name] is not value and values[name] != value}
        fields = {name: value for name, value in values.items() if name not in unclear} | fields
        level = {(*path, key): entry for path, value in level.items() for key, entry in _nested_fields(value).items()}
    return fields


def _unpacked(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of a constructor by name; those of ``*args`` and ``**kwargs`` one by one."""
    for name, value in arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}{position}", entry) for position, entry in enumerate(value))
        else:
            yield name, value


def _fields(value: Any) -> Mapping[str, Any]:
    """The fields of an object or mapping that a constructor is given."""
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()}
    declared = getattr(value, "__dataclass_fields__", None) or getattr(value, "__dict__", {})
    return {name: getattr(value, name) for name in declared if not name.startswith("_") and hasattr(value, name)}


def _nested_fields(value: Any) -> Mapping[str, Any]:
    """The fields of a config within a config: a dataclass or a mapping."""
    config = isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type))
    return _fields(value) if config else {}


def holds(text: str, scope: Scope) -> tuple[Answer, str]:
    """Whether a requirement holds, and the numbers that show it.

    Raises:
        DefinitionError: HF114 for what is not arithmetic, HF323 for an unknown name.
    """
    used: dict[str, Fraction | None] = {}
    answer, in_words = verdict(text, scope, used), _values_in_words(used)
    with suppress(ZeroDivisionError):
        if values := {side: evaluate(expression, scope) for side, expression in _sides(text)}:
            further = {name: value for name, value in used.items() if name not in values}
            in_words = (
                f"{_values_in_words(values)}, with {_values_in_words(further)}" if further else _values_in_words(values)
            )
    return answer, in_words


def verdict(text: str, scope: Scope, used: dict[str, Fraction | None] | None = None) -> Answer:
    """Whether a requirement holds; ``used`` collects the names that it looks up. Errors as for ``holds``."""
    try:
        value = evaluate(parsed(text), scope, used)
    except ZeroDivisionError:  # what divides by zero does not hold
        return Answer.REFUTED
    if value is None:
        return Answer.UNKNOWN
    return Answer.PROVED if value else Answer.REFUTED


@lru_cache(maxsize=256)
def _sides(text: str) -> tuple[tuple[str, ast.expr], ...]:
    """The sides of a comparison, as they are written and parsed; none of one with a remainder, whose names say more."""
    expression = parsed(text)
    if not isinstance(expression, ast.Compare):
        return ()
    sides = [side for side in (expression.left, *expression.comparators) if not isinstance(side, ast.Constant)]
    if any(isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod) for side in sides):
        return ()
    return tuple((ast.unparse(side), side) for side in sides)


def _values_in_words(values: Mapping[str, Fraction | bool | None]) -> str:
    return " and ".join(f"{name} = {value if value is not None else '?'}" for name, value in values.items())


def evaluate(node: ast.expr, scope: Scope, used: dict[str, Fraction | None] | None = None) -> Any:
    """The value of an expression; None if it depends on an unknown size. ``used`` collects the names that it looks up.

    Raises:
        DefinitionError: HF114 for what is not arithmetic, HF323 for an unknown name.
        ZeroDivisionError: where it divides by zero.
    """
    match node:
        case ast.Constant(value) if (number := _number(value)) is not None:
            return number
        case ast.Name(name):
            number = scope.lookup(name)
            if used is not None:
                used[name] = number
            return number
        case ast.UnaryOp(op, operand) if type(op) in _SIGNS:
            value = evaluate(operand, scope, used)
            return None if value is None else _SIGNS[type(op)](value)
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            a, b = evaluate(left, scope, used), evaluate(right, scope, used)
            if a is None or b is None:
                return None
            return Fraction(_ARITHMETIC[type(op)](a, b))
        case ast.Compare(left, ops, rights) if all(type(op) in COMPARISON_OPERATORS for op in ops):
            values = [evaluate(part, scope, used) for part in (left, *rights)]
            if any(value is None for value in values):
                return None
            return all(COMPARISON_OPERATORS[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.BoolOp(op, parts):
            decided = isinstance(op, ast.Or)  # one true part decides "or", one false part decides "and"
            values = []
            for part in parts:  # and what stands after it is not evaluated, as in Python
                values.append(evaluate(part, scope, used))
                if values[-1] is not None and bool(values[-1]) is decided:
                    return decided
            return None if None in values else not decided
    raise DefinitionError("HF114", f"'{ast.unparse(node)}' is not arithmetic over dims and config fields")


@lru_cache(maxsize=256)
def parsed(text: str) -> ast.expr:
    """A requirement as a tree, in which ``config.optimizer.warmup`` is one name."""
    return _DottedNames().visit(ast.parse(text.strip(), mode="eval").body)  # type: ignore[no-any-return]


class _DottedNames(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        owner = self.visit(node.value)
        return ast.Name(f"{owner.id}.{node.attr}", ast.Load()) if isinstance(owner, ast.Name) else node


@lru_cache(maxsize=256)
def names(text: str) -> tuple[str, ...]:
    """The names in a requirement, each once."""
    return tuple(dict.fromkeys(n.id for n in nodes_of(parsed(text)) if isinstance(n, ast.Name)))


def remainder(text: str, scope: Scope) -> str | None:
    """The division behind a requirement ``a % b == 0`` in numbers, which are all known; None for any other."""
    match parsed(text):
        case ast.Compare(ast.BinOp(left, ast.Mod(), right), [ast.Eq()], [ast.Constant(0)]):
            with suppress(ZeroDivisionError):
                a, b = evaluate(left, scope), evaluate(right, scope)
                return f"{a} % {b} = {a % b}"
    return None
