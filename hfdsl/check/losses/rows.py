"""Rows in a policy's loss: which indices take all tokens of some rows, and which numbers have rows and tokens as dims.

A worked example, shuffled mini-batches of a record with tokens ``ids`` and one ``gain`` for each row::

    order = torch.randperm(len(ids))             indices of 1 dim
    for rows in order.split(8):                  of 2, and of 1 for each mini-batch
        part = ids[rows]                         rows and tokens, as ids
        mask = masks[rows, 1:]                   likewise, without the first token
        kept = part[gain[rows] > 0]              likewise: one test for each row
        last = part[at, lengths]                 something else: two indices take single tokens

An index of one dim takes whole rows from whatever has them in its first dim, in any order and any number.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation, sizes_of_view
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_tensors import CASTS, DRAWN_ORDERS, ELEMENTWISE, NUMPY, REDUCTIONS, functions
from hfdsl.check.losses.extremes import is_number
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.masks import TESTS
from hfdsl.check.losses.terms import Indices, PolicyValue, Quantity, Several, has_kind
from hfdsl.check.syntax_trees import index_parts

CONVERSIONS: Final = CASTS | functions("bfloat16 bool double float half tolist type type_as")
"""Functions whose result has the dims of their tensor."""

ROWWISE: Final = (ELEMENTWISE | TESTS).union(OPERATORS.values(), functions("divide multiply subtract true_divide")) - {
    "matmul"
}
"""Functions that compute each number from those at the same place."""

PARTS: Final = functions("array_split chunk hsplit split tensor_split")
"""Functions that cut a tensor into parts, by default along its first dim."""

COPIES: Final = functions("list sorted tuple")
"""Functions of Python that give the same numbers, in the same or in another order."""

SAMPLERS: Final = functions("RandomSampler SequentialSampler SubsetRandomSampler")
"""Classes of torch that give the numbers of rows one by one."""

# -- indices


def index_result(operation: Operation[PolicyValue], frame: CallFrame) -> PolicyValue:
    """The indices of rows that a function of torch or NumPy gives; None for other functions."""
    function, source, others = operation.function, operation.source, operation.others
    if operation.is_method and source is None and others and _module(operation) in NUMPY:
        source, others = others[0], others[1:]
    if isinstance(source, Indices):
        return _of_indices(operation, source)
    if function == "arange" or (function in DRAWN_ORDERS and _takes_count(operation, frame)):
        return Indices(1)
    dims = source.dims if isinstance(source, Quantity) else None
    match function, [*operation.positional, *operation.named]:
        case "where", [] | [_] if not [value for value in others if isinstance(value, Quantity)]:
            return Several((Indices(1),) * (dims or 1))
        case "nonzero", ["as_tuple"]:
            return Several((Indices(1),) * (dims or 1))
        case "nonzero", [] if dims == 1:
            return Indices(2)
        case "argsort", _ if dims == 1:
            return Indices(1)
        case "sort" | "topk", _ if dims == 1:
            return Several((None, Indices(1)))
    return None


def _takes_count(operation: Operation[PolicyValue], frame: CallFrame) -> bool:
    """Whether a function that draws an order takes the number of what it orders, or indices of one dim."""
    if operation.function == "randperm":
        return True
    given = operation.others[0] if operation.others else None
    written = next(iter(operation.positional), None)
    is_count = given is None or (has_kind(given, "number") and not getattr(given, "masks", ()))
    return given == Indices(1) or (is_count and frame.linear.of(written) is not None) or _is_size(written)


def _is_size(node: ast.expr | None) -> bool:
    """Whether an expression is the length of something."""
    match node:
        case ast.Call(ast.Name("len")) | ast.Call(ast.Attribute(_, "size"), [_]):
            return True
        case ast.Subscript(ast.Attribute(_, "shape"), ast.Constant(int())):
            return True
    return False


def _of_indices(operation: Operation[PolicyValue], source: Indices) -> Indices | None:
    """The indices that a function makes of others."""
    function, positional = operation.function, operation.positional
    if function in CONVERSIONS or function in DRAWN_ORDERS:
        return source
    if function in PARTS:
        return Indices(source.dims + 1) if "dim" not in operation.named else None
    if function in ("flatten", "ravel"):
        return Indices(1)
    if function in ("reshape", "view"):
        return Indices(len(sizes_of_view(function, positional)))
    if function == "squeeze" and source.dims == 2 and [ast.unparse(dim) for dim in positional] in (["-1"], ["1"]):
        return Indices(1)
    return _at(source, operation) if function == SUBSCRIPT else None


def _at(source: Indices, operation: Operation[PolicyValue]) -> Indices | None:
    """Some of the indices."""
    [index], [value] = operation.positional, operation.others
    match index:
        case ast.Slice():
            return source
        case ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())) if source.dims:
            return Indices(source.dims - 1)
    if isinstance(value, Indices) and source.dims:
        return Indices(source.dims - 1 + value.dims)
    return source if _are_rows(value) else None


def called_indices(call: ast.Call, value: Callable[[ast.expr], PolicyValue]) -> Indices | None:
    """The indices that a function of Python gives, or a class that draws mini-batches of them; None for others."""
    match call.func, call.args:
        case ast.Name("range" | "slice"), _:
            return Indices(1)
        case ast.Name(function), [given] if function in COPIES:
            copied = value(given)
            return copied if isinstance(copied, Indices) else None
        case ast.Attribute(ast.Name("random"), "sample"), [given, _] if value(given) == Indices(1):
            return Indices(1)
    name, options = last_name(call.func), {keyword.arg for keyword in call.keywords}
    if name in SAMPLERS:
        return Indices(1)
    is_loader = name == "DataLoader" and "collate_fn" not in options and call.args
    return Indices(2) if name == "BatchSampler" or (is_loader and value(call.args[0]) == Indices(1)) else None


def _module(operation: Operation[PolicyValue]) -> str:
    """The name of what a method is of."""
    match operation.node:
        case ast.Call(ast.Attribute(ast.Name(name))):
            return name
    return ""


# -- indices of whole rows


def index_of_rows(operation: Operation[PolicyValue]) -> ast.expr:
    """The index of a subscript, with a slice in the place of indices of rows: either takes all tokens of some rows."""
    [index], [value] = operation.positional, operation.others
    source, (first, *parts) = operation.source, index_parts(index) or [index]
    is_gain = isinstance(source, Quantity) and source.kind == "advantage" and source.of_rows
    has_rows = is_gain or (isinstance(source, Quantity) and (source.dims or 0) > 1)
    rows = value.values[0] if isinstance(index, ast.Tuple) and isinstance(value, Several) and value.values else value
    if not has_rows or not _are_rows(rows) or not all(map(_is_slice, parts)) or isinstance(first, ast.Slice):
        return index
    return ast.Tuple([ast.Slice(), *parts], ast.Load()) if parts else ast.Slice()


def takes_rows(operation: Operation[PolicyValue]) -> bool:
    """Whether a function takes all tokens of some rows."""
    if not isinstance(operation.source, Quantity) or (operation.source.dims or 0) < 2:
        return False
    dim = operation.named.get("dim")
    arguments = [*operation.positional]
    match operation.function:
        case "index_select":
            dim = arguments[0] if dim is None and arguments else dim
        case "chunk" | "split" | "unbind":
            is_default = dim is None and len(arguments) < 2
            dim = arguments[-1] if dim is None and arguments else dim
            dim = ast.Constant(0) if is_default else dim
        case _:
            return False
    return dim is not None and ast.unparse(dim) == "0"


def _are_rows(value: PolicyValue) -> bool:
    """Whether an index certainly has one dim: numbers of rows, or a test of each."""
    return value == Indices(1) or (isinstance(value, Quantity) and value.dims == 1)


def _is_slice(part: ast.expr) -> bool:
    return isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is None)


# -- dims


def dims_of(operation: Operation[PolicyValue], frame: CallFrame) -> int | None:
    """How many dims the result certainly has, of which the first are rows and the next tokens; None if unknown."""
    function, source = operation.function, operation.source
    dims = source.dims if isinstance(source, Quantity) else None
    if function in ("gather", "take_along_dim"):
        tokens = [value for value in operation.others if isinstance(value, Quantity) and value.kind == "tokens"]
        return tokens[0].dims if tokens else None
    if dims is None:
        return None
    if function == SUBSCRIPT:
        return _dims_of_part(dims, index_of_rows(operation))
    if function in CONVERSIONS or (function == "index_select" and takes_rows(operation)):
        return dims
    if function in ROWWISE:
        every = {dims, *_dims_of_others(operation, frame)}
        return max((known for known in every if known is not None), default=0) if _meet(every) else None
    written = [ast.unparse(argument) for argument in operation.positional]
    if function == "unsqueeze" and written in (["-1"], [str(dims)]) and dims > 1:
        return dims + 1
    if function == "squeeze" and written in (["-1"], [str(dims - 1)]) and dims > 2:
        return dims - 1
    return _reduced(dims, operation) if function in REDUCTIONS else None


def _meet(every: set[int | None]) -> bool:
    """Whether numbers are single ones, or all have the same dims."""
    return None not in every and len(every - {0}) < 2


def _dims_of_others(operation: Operation[PolicyValue], frame: CallFrame) -> Iterator[int | None]:
    """The dims of what else an operation takes; 0 of what certainly is a number."""
    match operation.node:
        case ast.Call():
            written = [*operation.positional, *operation.named.values()]
        case ast.Compare(_, _, operands):
            written = operands
        case ast.BinOp(_, _, right):
            written = [right]
        case _:
            written = []
    for position, value in enumerate(operation.others):
        dims = value.dims if isinstance(value, Quantity) else None
        is_single = value is None and position < len(written) and is_number(written[position], frame)
        yield 0 if is_single else dims


def _dims_of_part(dims: int, index: ast.expr) -> int | None:
    """The dims of a part: a slice keeps a dim, and None adds one after it."""
    first, *others = index_parts(index) or [index]
    written = [ast.unparse(part) for part in (first, *others)]
    if dims == 1:
        return 1 if not others and isinstance(first, ast.Slice) else None
    if written in (["...", "None"], ["...", "0"]):
        return dims + 1 if written[1] == "None" else dims - 1 if dims > 2 else None
    if not dims or not isinstance(first, ast.Slice) or not all(map(_is_slice, others)):
        return None
    return dims + written.count("None")


def _reduced(dims: int, operation: Operation[PolicyValue]) -> int | None:
    """The dims of a statistic of all numbers, or of those of each row."""
    written = [ast.unparse(argument) for argument in operation.positional]
    named = {str(name): ast.unparse(value) for name, value in operation.named.items()}
    if not written and not named:
        return 0
    is_of_rows = (*written, *named.values()) in (("1",), ("-1",)) and named.keys() <= {"dim"}
    return 1 if is_of_rows and dims == 2 else None
