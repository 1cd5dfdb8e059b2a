"""Annotations of columns, read: from ``f32[B, R] | None`` to its dtype and dims.

An annotation is a value of ``typing``, such as ``Annotated[f32[B, R], hf.finite]``, of which each layer adds something
to the spec of what it holds::

    Annotated[..., hf.finite]   finite
    ... | None                  optional
    f32[B, Ragged[R]]           dtype, dims, ragged
"""

from __future__ import annotations

from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, Final, ForwardRef, Literal, Union, get_args, get_origin

from hfdsl.errors import DefinitionError
from hfdsl.types.columns import (
    COLUMNS,
    REDUCTIONS,
    Column,
    ColumnSpec,
    FieldSpec,
    Metric,
    MetricSpec,
    Obj,
    ObjSpec,
    finite,
)
from hfdsl.types.dims import quotients, size
from hfdsl.types.dtypes import DType
from hfdsl.types.ragged import Ragged


def optional_of(annotation: object) -> object | None:
    """Unwrap an optional annotation: ``f32[B, R]`` of ``f32[B, R] | None``; None for any other annotation.

    >>> optional_of(int | None), optional_of(int)
    (<class 'int'>, None)
    """
    if get_origin(annotation) not in (Union, UnionType):
        return None
    others = [part for part in get_args(annotation) if part is not type(None)]
    return others[0] if len(others) == 1 and len(get_args(annotation)) == 2 else None


def is_marked_finite(annotation: object) -> bool:
    """Whether an annotation is ``Annotated[..., hf.finite]``."""
    return get_origin(annotation) is Annotated and any(extra == finite for extra in get_args(annotation)[1:])


def field_spec(annotation: object, where: str) -> FieldSpec:
    """Read an annotation such as ``f32[B, R]`` or ``f32[B, R] | None``; ``where`` names it in the error.

    Raises:
        DefinitionError: HF101 bad dim, HF102 unknown dtype, HF104 not a column, HF116 unknown reduction, HF117 a metric
            that may be absent.
    """
    if is_marked_finite(annotation):
        spec = field_spec(get_args(annotation)[0], where)
        if not isinstance(spec, ColumnSpec):
            raise DefinitionError("HF104", f"{where}: hf.finite is a mark of columns with numbers, and {spec} is none")
        return replace(spec, finite=True)
    inner = optional_of(annotation)
    if inner is not None:
        spec = field_spec(inner, where)
        if isinstance(spec, MetricSpec):
            raise DefinitionError("HF117", f"{where}: a metric cannot be optional: ranks reduce what all of them give")
        return replace(spec, optional=True)
    origin, arguments = get_origin(annotation), get_args(annotation)
    try:
        if origin is Column:
            dtype_names = ", ".join(column.__name__ for column in COLUMNS.values())
            raise DefinitionError("HF102", f"a column is one of {dtype_names}; write it as in f32[B, R]")
        if isinstance(origin, type) and issubclass(origin, Column):
            return _column_spec(origin.dtype, arguments)
        if origin is Obj:
            return ObjSpec(arguments[0], size(arguments[1]), quotients=quotients(arguments[1]))
        if origin is Metric:
            return MetricSpec(arguments[0], _reduction(arguments[1]))
    except DefinitionError as error:
        raise DefinitionError(error.code, f"{where}: {error.message}") from None
    shown = getattr(annotation, "__name__", annotation)
    if isinstance(annotation, type) and issubclass(annotation, Column):
        raise DefinitionError("HF104", f"{where}: {shown} has no dims; write them as in {shown}[B, R]")
    raise DefinitionError(
        "HF104",
        f"{where}: {shown} has neither dtype nor dims; write a column such as f32[B, R], Obj[str, B] or "
        'Metric[float, Literal["mean"]]',
    )


def _column_spec(dtype: type[DType], dims: tuple[Any, ...]) -> ColumnSpec:
    ragged = [i for i, dim in enumerate(dims) if get_origin(dim) is Ragged or dim is Ragged]
    if ragged not in ([], [1]):
        raise DefinitionError("HF101", "the dim after the rows can be ragged, and no other: i64[B, Ragged[R], H]")
    if any(dim is Ragged for dim in dims):
        raise DefinitionError("HF101", "Ragged has no bound; write it as in i64[B, Ragged[R]]")
    sizes = tuple(size(get_args(dim)[0] if i in ragged else dim) for i, dim in enumerate(dims))
    exact = tuple(quotient for dim in dims for quotient in quotients(dim))
    return ColumnSpec(dtype, sizes, ragged=bool(ragged), quotients=exact)


_LITERAL: Any = Literal

REDUCTION_LITERALS: Final = {name: _LITERAL[name] for name in REDUCTIONS}
"""What the name of a reduction stands for where ``typing`` evaluates it, as in ``Metric[float, "mean"]``."""


def _reduction(argument: object) -> str:
    if get_origin(argument) is Literal:
        [argument] = get_args(argument)
    name = argument.__forward_arg__ if isinstance(argument, ForwardRef) else argument
    if name not in REDUCTIONS:
        raise DefinitionError("HF116", f"no reduction {name!r}; there are {', '.join(REDUCTIONS)}")
    return str(name)
