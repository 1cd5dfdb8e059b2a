"""Rows in a policy's loss: which indices take all tokens of some rows, and which numbers have rows and tokens as dims.

A worked example, shuffled mini-batches of a record with tokens ``ids`` and one ``gain`` for each row::

    for rows in torch.randperm(8).split(2):      indices of 1 dim
        part = ids[rows]                         rows and tokens, as ids
        mask = masks[rows, 1:]                   likewise, without the first token
        kept = part[gain[rows] > 0]              likewise: a test of each row that may have padding
        last = part[at, lengths]                 something else: two indices take single tokens

``bodies/row_indices.py`` says what indices are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_indices import CONVERSIONS, Indices, index_result, is_slice, module_of, with_whole_rows
from hfdsl.check.bodies.row_tensors import DIM_IS_SECOND, ELEMENTWISE, NUMPY, REDUCTIONS, TESTS, functions
from hfdsl.check.losses.extremes import is_number
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.terms import SOME, Batches, PolicyValue, Quantity, Several
from hfdsl.check.syntax_trees import index_parts

ROWWISE: Final = (ELEMENTWISE | TESTS).union(OPERATORS.values(), functions("divide multiply subtract true_divide")) - {
    "matmul"
}
"""Functions that compute each number from those at the same place."""

# -- indices


def row_index_result(operation: Operation[PolicyValue], frame: CallFrame) -> PolicyValue:
    """The indices of rows that a function gives, also of a test of each row; None for other functions."""
    function, source = operation.function, operation.source
    result = index_result(operation)
    if result is not None:
        return result
    if function == "permutation" and _takes_number(operation, frame):
        return Indices(1)
    if isinstance(source, Indices) and function == SUBSCRIPT:
        return source if _are_rows(operation.others[0]) else None
    is_numpy = module_of(operation) in NUMPY and len(operation.others) == 1
    if not _are_rows(operation.others[0] if is_numpy else source):
        return None
    match function, [*operation.positional, *operation.named]:
        case "nonzero" | "where", _ if is_numpy or (function == "where" and not operation.others):
            return Several((Indices(1),))
        case "nonzero", ["as_tuple"]:
            return Several((Indices(1),))
        case "nonzero", []:
            return Indices(2)
        case "argsort", _:
            return Indices(1)
        case "sort" | "topk", _:
            return Several((None, Indices(1)))
    return None


def _takes_number(operation: Operation[PolicyValue], frame: CallFrame) -> bool:
    """Whether a function takes a number, such as ``n``, and no tensor."""
    value, written = next(iter(operation.others), None), next(iter(operation.positional), None)
    may_be_number = value is None or (isinstance(value, Quantity) and value.kind == "number" and not value.masks)
    return written is not None and may_be_number and frame.linear.of(written) is not None


# -- loaders


def is_loaded(call: ast.Call) -> bool:
    """Whether a call makes a loader of mini-batches, each a tuple of some rows of all tensors of its data set."""
    return last_name(call.func) == "DataLoader" and "collate_fn" not in {keyword.arg for keyword in call.keywords}


def loaded_batches(call: ast.Call, value: Callable[[ast.expr], PolicyValue]) -> Batches | None:
    """The mini-batches of a data set of tensors, or of a loader of one; None for other calls."""
    if last_name(call.func) == "TensorDataset":
        return Batches(tuple(map(value, call.args)))
    data = value(call.args[0]) if is_loaded(call) and call.args else None
    return data if isinstance(data, Batches) else None


# -- indices of whole rows


def index_of_rows(operation: Operation[PolicyValue]) -> ast.expr:
    """The index of a subscript, with a slice in the place of indices of rows that take all tokens of these."""
    [index], [value], source = operation.positional, operation.others, operation.source
    is_gain = isinstance(source, Quantity) and source.kind == "advantage" and source.of_rows
    has_rows = is_gain or (isinstance(source, Quantity) and (source.dims or 0) > 1)
    first = value.values[0] if isinstance(index, ast.Tuple) and isinstance(value, Several) and value.values else value
    return with_whole_rows(index) if has_rows and _are_rows(first) else index


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
    """Whether an index certainly has one dim: numbers of rows, or a test of each that does not depend on their masks.

    The rows that such a test takes may have no padding.
    """
    is_test = isinstance(value, Quantity) and value.dims == 1 and value.masks <= SOME
    return value == Indices(1) or is_test


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
        if function in TESTS and dims == 1 and isinstance(source, Quantity) and source.masks:
            return None  # of lengths, perhaps
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
    if not dims or not isinstance(first, ast.Slice) or not all(map(is_slice, others)):
        return None
    return dims + written.count("None")


def _reduced(dims: int, operation: Operation[PolicyValue]) -> int | None:
    """The dims of a statistic of all numbers, or of those of each row."""
    written = [ast.unparse(argument) for argument in operation.positional]
    named = {str(name): ast.unparse(value) for name, value in operation.named.items()}
    if operation.function in DIM_IS_SECOND:
        return None
    if not written and not named:
        return 0
    is_of_rows = (*written, *named.values()) in (("1",), ("-1",)) and named.keys() <= {"dim"}
    return 1 if is_of_rows and dims == 2 else None
