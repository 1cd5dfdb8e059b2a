"""Requirements: the little language of ``hf.requires``: arithmetic and comparisons over dims and config fields."""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from hfdsl.deploy.deployment import Placement
from hfdsl.errors import DefinitionError
from hfdsl.protocols.mesh import AXIS_SIZE, Mesh
from hfdsl.types.batches import closest
from hfdsl.types.dims import Answer, Size

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

MESH_SIZES: Mapping[str, Callable[[Mesh], int]] = {
    **{axis: size for axis, size in AXIS_SIZE.items() if axis != "rank"},
    "world_size": AXIS_SIZE["rank"],
}
"""What a requirement may name of a role's mesh."""


@dataclass(frozen=True, slots=True)
class Known:
    """What names mean: sizes by dim name, the constructor's arguments and the fields of its config objects, mesh sizes.

    ``config`` is false for a function, which has none.
    """

    sizes: Mapping[str, Size]
    placement: Placement[Any] | None
    config: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)

    def lookup(self, name: str) -> Fraction | None:
        """The number behind a name, None where it is a dim without a known size.

        Raises:
            DefinitionError: HF323 for a name that is neither.
        """
        if name in self.sizes:
            return self.sizes[name].value
        if isinstance(value := self.fields.get(name), (int, float)) and math.isfinite(value):
            return Fraction(value)
        if self.placement and name in MESH_SIZES:
            return Fraction(MESH_SIZES[name](self.placement.mesh))
        if self.placement is None and self.config:
            return None
        kinds = (
            "neither a dim, a number of the role's config nor a size of its mesh"
            if self.config
            else "no dim of the function"
        )
        raise DefinitionError(
            "HF323", f"'{name}' is {kinds}; {closest(name, [*self.sizes, *self.fields, *MESH_SIZES])}"
        )


def config_fields(placement: Placement[Any]) -> dict[str, Any] | None:
    """The constructor's arguments by name, and the fields of those that are objects; None where it takes others."""
    try:
        role: type = placement.role
        arguments = _constructor(role).bind(*placement.args, **placement.kwargs)
    except TypeError:
        return None
    arguments.apply_defaults()
    fields: dict[str, Any] = {}
    for name, value in arguments.arguments.items():
        inner = value if isinstance(value, Mapping) else {f: getattr(value, f) for f in _field_names(value)}
        fields |= {str(key): item for key, item in inner.items()}
        fields[name] = value
    return fields


@lru_cache(maxsize=256)
def _constructor(role: type) -> inspect.Signature:
    return inspect.signature(role)


def _field_names(value: Any) -> list[str]:
    declared = getattr(value, "__dataclass_fields__", None) or getattr(value, "__dict__", {})
    return [name for name in declared if not name.startswith("_")]


def holds(text: str, known: Known) -> tuple[Answer, str]:
    """Whether a requirement holds, and the numbers that say so.

    Raises:
        DefinitionError: HF114 for what is no arithmetic, HF323 for an unknown name.
    """
    used: dict[str, Fraction | None] = {}
    verdict = _evaluate(_parsed(text), known, used)
    shown = " and ".join(f"{name} = {value if value is not None else '?'}" for name, value in used.items())
    if verdict is None:
        return Answer.UNKNOWN, shown
    return (Answer.PROVED if verdict else Answer.REFUTED), shown


def _evaluate(node: ast.expr, known: Known, used: dict[str, Fraction | None]) -> Any:
    """The value of an expression; None where it hangs on an unknown size."""
    match node:
        case ast.Constant(value) if isinstance(value, (int, float)) and math.isfinite(value):
            return Fraction(value)
        case ast.Name(name):
            used[name] = known.lookup(name)
            return used[name]
        case ast.UnaryOp(ast.USub(), operand):
            value = _evaluate(operand, known, used)
            return None if value is None else Fraction(-value)
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            a, b = _evaluate(left, known, used), _evaluate(right, known, used)
            if a is None or b is None:
                return None
            if b == 0 and isinstance(op, (ast.Mod, ast.FloorDiv, ast.Div)):
                return False  # a requirement that divides by zero does not hold
            return Fraction(_ARITHMETIC[type(op)](a, b))
        case ast.Compare(left, ops, rights) if all(type(op) in _COMPARISONS for op in ops):
            values = [_evaluate(part, known, used) for part in (left, *rights)]
            if any(value is None for value in values):
                return None
            return all(_COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.BoolOp(op, parts):
            values = [_evaluate(part, known, used) for part in parts]
            decided = isinstance(op, ast.Or)  # one true part decides "or", one false part decides "and"
            if any(value is not None and bool(value) is decided for value in values):
                return decided
            return None if any(value is None for value in values) else not decided
    raise DefinitionError("HF114", f"'{ast.unparse(node)}' is no arithmetic over dims and config fields")


@lru_cache(maxsize=256)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


@lru_cache(maxsize=256)
def names(text: str) -> tuple[str, ...]:
    """The names in a requirement, each once."""
    return tuple(dict.fromkeys(n.id for n in ast.walk(_parsed(text)) if isinstance(n, ast.Name)))


def divisibility(text: str, known: Known) -> tuple[str, int] | None:
    """The dim and the divisor of a requirement ``DIM % number == 0``; None for any other."""
    match _parsed(text):
        case ast.Compare(ast.BinOp(ast.Name(dim), ast.Mod(), divisor), [ast.Eq()], [ast.Constant(0)]) if (
            dim in known.sizes
        ):
            try:
                number = _evaluate(divisor, known, {})
            except DefinitionError:
                return None  # told where requirements are evaluated
            if isinstance(number, Fraction) and number.denominator == 1 and number >= 1:
                return dim, int(number)
    return None


def remainder(text: str, known: Known) -> str | None:
    """The division behind a requirement ``a % b == 0`` in numbers; None for any other."""
    match ast.parse(text.strip(), mode="eval").body:
        case ast.Compare(ast.BinOp(left, ast.Mod(), right), [ast.Eq()], [ast.Constant(0)]):
            a, b = _evaluate(left, known, {}), _evaluate(right, known, {})
            return f"{a} % {b} = {a % b}" if a is not None and b else None
    return None
