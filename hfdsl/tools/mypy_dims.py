"""Dims between mypy's types and hfdsl's normal forms, for the mypy plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce
from types import new_class
from typing import TypeAlias, TypeVar

import mypy.types  # noqa: F401  # first: mypy's modules import each other in a ring
from mypy.maptype import map_instance_to_supertype
from mypy.type_visitor import TypeTranslator
from mypy.types import Instance, LiteralType, Type, TypeAliasType, TypeVarId, TypeVarType, get_proper_type

from hfdsl.errors import DefinitionError
from hfdsl.types.columns import COLUMNS, ColumnSpec
from hfdsl.types.dims import Atom, Dim, Size, atom_size, constant

DIMS, COLUMN = "hfdsl.types.dims.", "hfdsl.types.columns.Column"
DTYPES = {f"{dtype.__module__}.{dtype.__name__}": dtype for dtype in COLUMNS}
OPERATIONS = {DIMS + "Add": Size.__add__, DIMS + "Mul": Size.__mul__, DIMS + "Div": Size.__truediv__}

Names: TypeAlias = dict[Atom, Type]
"""The names in a normal form, as mypy's types."""

Named: TypeAlias = Callable[[str, list[Type]], Instance]
"""The type of a class by its full name."""


class OpaqueError(Exception):
    """A dim that the plugin does not interpret; mypy compares its spelling."""


@cache
def _dim(fullname: str) -> Atom:
    # Sizes sort dims by name and module: the full name for a module makes the order the same in every run.
    return new_class(fullname.rpartition(".")[2], (Dim,), exec_body=lambda body: body.update(__module__=fullname))


@cache
def variable(name: str, _id: TypeVarId) -> TypeVar:
    """The atom of a user's type variable in normal forms."""
    return TypeVar(name)  # pyright: ignore[reportGeneralTypeIssues]  # named by the user


def read(dim: Type, names: Names) -> Size:
    """The normal form of a dim; its names are added to ``names``.

    Raises:
        OpaqueError: where it is none that a size can be made of.
    """
    proper = get_proper_type(dim)
    match proper:
        case Instance() if proper.type.fullname in OPERATIONS and len(proper.args) == 2:
            left, right = (read(part, names) for part in proper.args)
            try:
                return OPERATIONS[proper.type.fullname](left, right)
            except DefinitionError:  # a divisor that is a sum
                raise OpaqueError from None
        case LiteralType(value=int(number)):
            return constant(number)
        case Instance() if proper.type.has_base(DIMS + "Dim"):
            atom: Atom = _dim(proper.type.fullname)
        case TypeVarType():
            atom = variable(proper.name, proper.id)
        case _:
            raise OpaqueError
    names[atom] = proper
    return atom_size(atom)


def write(size: Size, names: Names, named: Named) -> Type:
    """The one type that stands for a normal form."""

    def product(factors: list[Type], number: int) -> Type:
        if number != 1 or not factors:
            factors = [*factors, LiteralType(number, named("builtins.int", []))]
        return reduce(lambda left, right: named(DIMS + "Mul", [left, right]), factors)

    def term(monomial: tuple[tuple[Atom, int], ...], coefficient: Fraction) -> Type:
        above = product([names[a] for a, power in monomial for _ in range(power)], coefficient.numerator)
        below = [names[a] for a, power in monomial for _ in range(-power)]
        if not below and coefficient.denominator == 1:
            return above
        return named(DIMS + "Div", [above, product(below, coefficient.denominator)])

    terms = [term(*t) for t in size.terms] or [product([], 0)]
    return reduce(lambda left, right: named(DIMS + "Add", [left, right]), terms)


def normal(dim: Type, named: Named) -> Type:
    """A dim in normal form, or unchanged where it is not interpreted."""
    names: Names = {}
    try:
        return write(read(dim, names), names, named)
    except OpaqueError:
        return dim


@dataclass
class Normal(TypeTranslator):
    """Brings the dims within a type into normal form."""

    named: Named

    def __post_init__(self) -> None:
        super().__init__()

    def visit_instance(self, t: Instance, /) -> Type:
        """A dim, or a type with dims among its arguments."""
        visited = super().visit_instance(t)
        return normal(visited, self.named) if t.type.fullname in OPERATIONS else visited

    def visit_type_alias_type(self, t: TypeAliasType, /) -> Type:
        """An alias is in normal form already."""
        return t


def column_spec(column: Instance, names: Names) -> ColumnSpec:
    """The dtype and the normal forms of ``f32[B, R]``.

    Raises:
        OpaqueError: where the dims are not all written out, or one is not read.
    """
    base = next(info for info in column.type.mro if info.fullname == COLUMN)
    dtype, *dims = map_instance_to_supertype(column, base).args
    proper = get_proper_type(dtype)
    element = DTYPES.get(proper.type.fullname) if isinstance(proper, Instance) else None
    if element is None or not dims:
        raise OpaqueError
    return ColumnSpec(element, tuple(read(dim, names) for dim in dims))
