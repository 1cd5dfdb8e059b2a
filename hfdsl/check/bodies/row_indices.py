"""Indices of rows as abstract values: the numbers of rows that a body shuffles, sorts and cuts into mini-batches.

A worked example::

    order = torch.randperm(len(ids))             indices of 1 dim
    for rows in order.split(8):                  of 2, and of 1 for each mini-batch
        part = ids[rows, 1:]                     all these rows, as by ids[:, 1:]
    for i in range(len(ids)):                    of 1, and of 0 for each row
        row = ids[i]                             one row

An index of one dim takes whole rows from whatever has them in its first dim, in any order and any number. So does a
slice that has a name, which is one here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation, sizes_of_view
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_tensors import CASTS, DRAWN_ORDERS, NUMPY, functions
from hfdsl.check.syntax_trees import index_parts

CONVERSIONS: Final = CASTS | functions("bfloat16 bool double float half tolist type type_as")
"""Functions whose result has the dims of their tensor."""

PARTS: Final = functions("array_split chunk split tensor_split")
"""Functions that cut a tensor into parts, by default along its first dim."""

COPIES: Final = functions("list sorted tuple")
"""Functions of Python that give the same numbers, in the same or in another order."""

SAMPLERS: Final = functions("RandomSampler SequentialSampler SubsetRandomSampler")
"""Classes of torch that give the numbers of rows one by one."""


@dataclass(frozen=True, slots=True)
class Indices:
    """Numbers of rows, such as a shuffled order; of 2 ``dims`` they are those of mini-batches, and of 0 one row's."""

    dims: int

    def element(self) -> Indices | None:
        """An element that a loop takes."""
        return Indices(self.dims - 1) if self.dims else None


def index_result(operation: Operation[Any]) -> Indices | None:
    """The indices that a function of torch or NumPy gives; None for other functions."""
    function, source, others = operation.function, operation.source, operation.others
    if operation.is_method and source is None and others and module_of(operation) in NUMPY:
        source = others[0]
    if isinstance(source, Indices):
        return _of_indices(operation, source)
    is_drawn = function == "randperm" or (function in DRAWN_ORDERS and _takes_count(operation))
    return Indices(1) if isinstance(operation.node, ast.Call) and (is_drawn or function == "arange") else None


def called_indices(call: ast.Call, value: Callable[[ast.expr], object]) -> Indices | None:
    """The indices that a function of Python gives, or a class that draws mini-batches of them; None for others."""
    match call.func, call.args:
        case ast.Name("range" | "slice"), _:
            return Indices(1)
        case ast.Name(function), [given] if function in COPIES and not call.keywords:
            copied = value(given)
            return copied if isinstance(copied, Indices) else None
        case ast.Attribute(ast.Name("random"), "sample"), [given, _] if value(given) == Indices(1):
            return Indices(1)
    name, options = last_name(call.func), {keyword.arg for keyword in call.keywords}
    is_loader = name in ("BatchSampler", "DataLoader") and "collate_fn" not in options
    if (not is_loader and name not in SAMPLERS) or not call.args or value(call.args[0]) != Indices(1):
        return None
    return Indices(2) if is_loader else Indices(1)


def with_whole_rows(index: ast.expr) -> ast.expr:
    """An index that begins with indices of rows, with a slice in their place: either takes all tokens of some rows.

    An index that then takes single tokens stays as it is.

    >>> indices = (ast.parse(f"ids[{index}]", mode="eval").body.slice for index in ("rows", "rows, 1:", "rows, at"))
    >>> [ast.unparse(with_whole_rows(index)) for index in indices]
    [':', '(:, 1:)', '(rows, at)']
    """
    _, *parts = index_parts(index)
    if not all(map(is_slice, parts)):
        return index
    return ast.Tuple([ast.Slice(), *parts], ast.Load()) if parts else ast.Slice()


def is_slice(part: ast.expr) -> bool:
    """Whether a part of an index keeps its dim, or adds one."""
    return isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is None)


def module_of(operation: Operation[Any]) -> str:
    """The name of the module, or the tensor, that a function is written after; empty for an expression."""
    match operation.node:
        case ast.Call(ast.Attribute(ast.Name(name))):
            return name
    return ""


def _takes_count(operation: Operation[Any]) -> bool:
    """Whether a function that draws an order certainly takes the number of what it orders, or indices of one dim."""
    match [*operation.positional[:1]], [*operation.others[:1]]:
        case _, [Indices(1)]:
            return True
        case [ast.Constant(int()) | ast.Call(ast.Name("len")) | ast.Call(ast.Attribute(_, "size"), [_])], _:
            return True
        case [ast.Subscript(ast.Attribute(_, "shape"), ast.Constant(int()))], _:
            return True
    return False


def _of_indices(operation: Operation[Any], source: Indices) -> Indices | None:
    """The indices that a function makes of others."""
    function, positional = operation.function, operation.positional
    if function in CONVERSIONS or function in DRAWN_ORDERS:
        return source
    if function in PARTS:
        return Indices(source.dims + 1) if "dim" not in operation.named else None
    if function in ("flatten", "ravel"):
        return Indices(1)
    if function in ("reshape", "view"):
        sizes = sizes_of_view(function, positional)
        is_certain = len(sizes) > 1 or any(ast.unparse(size) == "-1" for size in sizes)  # and no shape under a name
        return Indices(len(sizes)) if is_certain and not any(isinstance(size, ast.Starred) for size in sizes) else None
    if function == "squeeze" and source.dims == 2 and [ast.unparse(dim) for dim in positional] in (["-1"], ["1"]):
        return Indices(1)
    return _at(source, operation) if function == SUBSCRIPT else None


def _at(source: Indices, operation: Operation[Any]) -> Indices | None:
    """Some of the indices."""
    [index], [value] = operation.positional, operation.others
    match index:
        case ast.Slice():
            return source
        case ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())) if source.dims:
            return Indices(source.dims - 1)
    return Indices(source.dims - 1 + value.dims) if isinstance(value, Indices) and source.dims else None
