"""Rows of a body as abstract values: what functions of torch make of the rows of a call.

Of ``x`` with four rows, ``x.view(-1, 2)`` are groups of rows, ``x.view(2, -1)`` pieces as long as the call has rows for
them, ``x.mean(0)`` is a statistic of all rows, and ``x.mean(1)`` a number of each.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal, TypeAlias


def functions(names: str) -> frozenset[str]:
    """The names of functions, separated by spaces."""
    return frozenset(names.split())


ELEMENTWISE = functions(
    "abs add bool ceil clamp clip clone contiguous cpu cuda detach div double exp expm1 float floor int log log1p log2 "
    "logical_not long masked_fill maximum minimum mul nan_to_num neg pow reciprocal relu round rsqrt sigmoid sign sqrt "
    "square sub tanh to where"
)
"""Functions of tensors that compute each value from those at the same place."""

REDUCTIONS = functions(
    "all amax amin any argmax argmin logsumexp max mean median min nanmean norm prod quantile std std_mean sum var "
    "var_mean"
)
"""Functions of a tensor that take all values together, or those along ``dim``."""

ORDERS = functions("argsort cumprod cumsum flip log_softmax normalize roll softmax sort")
"""Functions along one dim, by default the last: over the first, a value depends on those of other rows."""

DRAWN_ORDERS = ("randperm",)
"""Functions that draw an order of as many rows as there are."""

DIM_IS_SECOND = ("norm", "normalize", "quantile", "roll")
"""The functions whose dim follows another number."""

VIEWS = functions("expand flatten repeat repeat_interleave reshape tile view")
"""Functions that arrange the values of a tensor in other dims, or repeat them."""

FORMS = functions("indices item squeeze tolist unsqueeze values")
"""Functions that return a statistic in another form."""

MODULES = functions("F nn.functional torch torch.nn.functional")
"""The modules whose functions have these names."""

First: TypeAlias = Literal["rows", "reordered", "pieces", "groups", "cut groups", "repeated groups"]
"""What the first dim of a tensor are: the rows of the call, also in another order, pieces as long as it has rows for
them, or groups of rows: whole ones, some that a plan may cut, or the whole ones all over again."""


@dataclass(frozen=True, slots=True)
class RowTensor:
    """A tensor of the values of rows; ``dims`` is None if the number of its dims is unknown."""

    dims: int | None
    first: First = "rows"


BodyValue: TypeAlias = RowTensor | Literal["statistic"] | None
"""The abstract value of an expression; None if unknown."""


def reduced(rows: RowTensor, function: str, positional: list[ast.expr], named: dict[str | None, ast.expr]) -> BodyValue:
    """A reduction or an order of rows: a statistic if it goes over the first dim, rows if it goes over others."""
    place = 1 if function in DIM_IS_SECOND else 0
    dim_argument = named.get("dim", named.get("dims", positional[place] if len(positional) > place else None))
    if function in REDUCTIONS and (dim_argument is None or rows.first == "pieces"):
        return "statistic"
    dims = dim_numbers(dim_argument) if dim_argument is not None else (-1,)
    if not dims or (rows.dims is None and min(dims) < 0):
        return None
    if not {0, -(rows.dims or 0)}.isdisjoint(dims):
        return "statistic"
    keeps_dims = function in ORDERS or "keepdim" in named or len(positional) > place + 1
    return RowTensor(rows.dims if keeps_dims or rows.dims is None else rows.dims - len(dims), rows.first)


def dim_numbers(argument: ast.expr) -> tuple[int, ...]:
    """The dims that an argument names; none if it is not a literal."""
    try:
        value = ast.literal_eval(argument)
    except ValueError:
        return ()
    entries = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(entries) if all(type(dim) is int for dim in entries) else ()


def indexed(value: BodyValue, index: ast.expr) -> BodyValue:
    """Index a value: all rows are left, if the index takes the whole first dim."""
    if not isinstance(value, RowTensor):
        return value
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    match parts:
        case [ast.Slice(None, None, None), *rest]:
            if value.dims is None or any(isinstance(part, ast.Constant) and part.value is ... for part in rest):
                return RowTensor(None, value.first)
            added = sum(isinstance(part, ast.Constant) and part.value is None for part in rest)
            removed = sum(not isinstance(part, ast.Slice) for part in rest) - added
            return RowTensor(value.dims + added - removed, value.first)
        case [ast.Constant(value=constant), ast.Constant(value=None)] if constant is ...:
            return RowTensor(None if value.dims is None else value.dims + 1, value.first)
        case _:
            return None
