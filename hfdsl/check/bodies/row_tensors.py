"""Rows of a body as abstract values: what functions of torch and NumPy make of the rows of a call.

Of ``x`` with four rows, ``x.view(-1, 2)`` are groups of rows, ``x.view(2, -1)`` pieces as long as the call has rows for
them, ``x.mean(0)`` is a statistic of all rows, and ``x.mean(1)`` a number of each. What is computed from both is mixed,
until a reduction makes another statistic of it::

    x / x.sum(0)                rows, mixed with a statistic
    (x / x.sum(0)).sum(1)       still rows, and mixed
    (x / x.sum(0)).sum()        a statistic, as x.sum() / 4 is
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from hfdsl.check.bodies.interpretation import OPERATORS, Operation
from hfdsl.check.syntax_trees import index_parts


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

TESTS: Final = functions("eq full ge gt isfinite isnan le logical_and logical_not logical_or lt ne ones ones_like")
"""Functions whose result may be a mask of tokens."""

NUMPY: Final = ("np", "numpy")
"""The names of NumPy."""

FILLED = functions("full full_like new_full")
"""Functions that fill a tensor with one number."""

METADATA = functions(
    "device dim dtype empty_like len ndim new_empty new_ones new_zeros numel ones_like rand_like randn_like shape size "
    "zeros_like"
)
"""Functions and attributes that say nothing of the values of a tensor."""

ROWWISE = ELEMENTWISE.union(OPERATORS.values(), functions("divide multiply subtract true_divide")) - {"matmul"}
"""The operations that compute each row from the same row of all operands."""

DRAWN_ORDERS = ("permutation", "randperm")
"""Functions that draw an order of as many rows as there are."""

CASTS = functions(
    "array as_tensor asarray astype clone contiguous copy cpu cuda detach from_numpy int long numpy tensor to"
)
"""Functions whose result has the values of their tensor, elsewhere or in another dtype."""

OUTPUT_FORMS = CASTS | functions("bfloat16 double float half last_hidden_state logits squeeze")
"""Functions and attributes that give the output of a model in another form."""

REORDERINGS = functions("flip roll")
"""Functions that put what is along a dim in another order."""

HAVE_A_CORRECTION = ("std", "std_mean", "var", "var_mean")
"""The functions whose dim precedes another number."""

DIM_IS_SECOND = ("norm", "normalize", "quantile", "roll")
"""The functions whose dim follows another number."""

VIEWS = functions("expand flatten repeat repeat_interleave reshape tile unflatten view")
"""Functions that arrange the values of a tensor in other dims, or repeat them."""

FORMS = functions("indices item squeeze tolist unsqueeze values")
"""Functions that return a statistic in another form."""

First: TypeAlias = Literal[
    "rows", "reordered", "selected", "pieces", "split groups", "groups", "cut groups", "repeated groups"
]
"""What the first dim of a tensor are: the rows of the call, also in another order or those that a mask selects, pieces
as long as it has rows for them, as many pieces as a group has rows, or groups of rows: whole ones, some that a plan may
cut, or the whole ones all over again."""


Mix: TypeAlias = Literal["statistic", "reordered", "across groups", "split groups", "cut groups", "repeated groups"]
"""What an expression computes rows from."""


class Mixed(NamedTuple):
    """An expression that computes rows from others."""

    expression: ast.expr
    mix: Mix


@dataclass(frozen=True, slots=True)
class RowTensor:
    """A tensor of the values of rows; ``dims`` is None if the number of its dims is unknown.

    ``column`` is the path of the argument's column whose values it has, also if all rows are in another order, and
    ``mixed`` are the expressions that mixed its rows with statistics. The last dim of a ``narrow`` tensor is 1, and one
    that is ``unsure`` may have met tensors with more dims.
    """

    dims: int | None
    first: First = "rows"
    column: str | None = None
    mixed: tuple[Mixed, ...] = ()
    narrow: bool = False
    unsure: bool = False

    def reordered(self) -> RowTensor | None:
        """All these rows in another order; None if they may be in the old one again."""
        return None if self.first == "reordered" else replace(self, first="reordered")


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The result of ``sort``: values, and the order that sorts them."""

    values: RowTensor


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """The result of something that is not followed, on mixed rows."""

    mixed: tuple[Mixed, ...]


@dataclass(frozen=True, slots=True)
class RoleOutput:
    """The result of a method or model of the role on rows; ``output[:, -1]`` has these rows, in the order ``first``."""

    first: First


STATISTICS = frozenset[object](("statistic", "across groups", "order"))
"""Numbers that depend on all rows: any, those over the first rows of all groups, over the second ones and so on, or an
order of all rows."""

BodyValue: TypeAlias = (
    RowTensor | SortedRows | Unfollowed | RoleOutput | Literal["statistic", "across groups", "order"] | None
)
"""The abstract value of an expression; None if unknown."""


def mixed_of(*values: BodyValue) -> tuple[Mixed, ...]:
    """The expressions that mixed the rows of some values, each once."""
    rows = (value.values if isinstance(value, SortedRows) else value for value in values)
    return _each_once(mixed for value in rows if isinstance(value, (RowTensor, Unfollowed)) for mixed in value.mixed)


def with_mixed(value: BodyValue, mixed: tuple[Mixed, ...]) -> BodyValue:
    """A value of mixed rows; a statistic of them is one as any other.

    >>> with_mixed("statistic", (Mixed(ast.Constant(1), "statistic"),))
    'statistic'
    """
    if not mixed:
        return value
    match value:
        case RowTensor() | Unfollowed():
            return replace(value, mixed=_each_once([*mixed, *value.mixed]))
        case SortedRows(rows):
            return SortedRows(replace(rows, mixed=_each_once([*mixed, *rows.mixed])))
        case RoleOutput() | None:
            return Unfollowed(mixed)
    return value


def mixed_here(value: BodyValue, call: ast.Call) -> BodyValue:
    """A value that a call returns: the call is what mixed it."""
    here = tuple({entry.mix: Mixed(call, entry.mix) for entry in mixed_of(value)}.values())
    match value:
        case RowTensor():
            return replace(value, mixed=here)
        case SortedRows(rows):
            return SortedRows(replace(rows, mixed=here))
        case Unfollowed():
            return with_mixed(None, here)
    return value


def set_in_part(value: BodyValue) -> BodyValue:
    """A value after a statement has set some of it, in place: an order may be any, and a column has other values."""
    match value:
        case RowTensor():
            return replace(value, column=None)
        case "order":
            return "statistic"
    return value


def is_metadata(node: ast.expr) -> bool:
    """Whether an expression says nothing of values but their number or type."""
    match node:
        case ast.Attribute(attr=name) | ast.Call(ast.Name(name) | ast.Attribute(attr=name)):
            return name in METADATA
    return False


def _each_once(mixed: Iterable[Mixed]) -> tuple[Mixed, ...]:
    return tuple({(id(entry.expression), entry.mix): entry for entry in mixed}.values())


def reduced(rows: RowTensor, operation: Operation[BodyValue]) -> BodyValue:
    """A reduction or an order of rows: a statistic if it goes over the first dim, rows if it goes over others."""
    function, dims = operation.function, reduced_dims(operation)
    is_of_each_row = rows.dims == 3 and dims in ((2,), (-1,))
    if function in REDUCTIONS and (dims is None or (rows.first in ("pieces", "split groups") and not is_of_each_row)):
        return "statistic"
    dims = (-1,) if dims is None else dims
    if not dims or (rows.dims is None and min(dims) < 0):
        return None
    if not {0, -(rows.dims or 0)}.isdisjoint(dims):
        return "statistic"
    keeps_dims = function in ORDERS or _keeps_dims(operation)
    if rows.dims is None or keeps_dims is None:
        return RowTensor(None, rows.first)
    of_last = function in REDUCTIONS and not {-1, rows.dims - 1}.isdisjoint(dims)
    narrow = keeps_dims if of_last else rows.narrow
    return RowTensor(rows.dims if keeps_dims else rows.dims - len(dims), rows.first, narrow=narrow, unsure=rows.unsure)


def _keeps_dims(operation: Operation[BodyValue]) -> bool | None:
    """Whether a reduction leaves a dim of 1 in the place of each of its dims; None if that is not certain."""
    named = operation.named
    place = _dim_place(operation.function) + (2 if operation.function in HAVE_A_CORRECTION else 1)
    positional = operation.positional[place] if len(operation.positional) > place else None
    argument = named.get("keepdim", named.get("keepdims", positional))
    return argument is not None and (bool(argument.value) if isinstance(argument, ast.Constant) else None)


def reduced_dims(operation: Operation[BodyValue]) -> tuple[int, ...] | None:
    """The dims of a reduction or an order: None if it names none, and no number if they are not literals."""
    named, place = operation.named, _dim_place(operation.function)
    positional = operation.positional[place] if len(operation.positional) > place else None
    argument = next((named[name] for name in ("dim", "dims", "axis") if name in named), positional)
    if isinstance(argument, ast.Constant) and argument.value is None:
        return None
    return None if argument is None else dim_numbers(argument)


def _dim_place(function: str) -> int:
    """The place of the dim among the arguments of a function."""
    return 1 if function in DIM_IS_SECOND else 0


def dim_numbers(argument: ast.expr) -> tuple[int, ...]:
    """The dims that an argument names; none if it is not a literal."""
    try:
        value = ast.literal_eval(argument)
    except ValueError:
        return ()
    entries = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(entries) if all(type(dim) is int for dim in entries) else ()


def _is_number_or_none(index: ast.expr) -> bool:
    """Whether an index certainly takes one place of a dim, or adds a dim; a name may be that of several places."""
    try:
        return isinstance(ast.literal_eval(index), int | None)
    except ValueError:
        return False


def indexed(value: RowTensor, index: ast.expr) -> BodyValue:
    """Index rows: all rows are left, if the index takes the whole first dim."""
    parts = index_parts(index)
    match parts:
        case [ast.Slice(None, None, None), *rest]:
            if value.dims is None or any(isinstance(part, ast.Constant) and part.value is ... for part in rest):
                return RowTensor(None, value.first)
            added = sum(isinstance(part, ast.Constant) and part.value is None for part in rest)
            removed = sum(not isinstance(part, ast.Slice) for part in rest) - added
            is_known = all(isinstance(part, ast.Slice) or _is_number_or_none(part) for part in rest)
            narrow = bool(rest) and isinstance(rest[-1], ast.Constant) and rest[-1].value is None
            dims = value.dims + added - removed if is_known else None
            return RowTensor(dims, value.first, narrow=narrow, unsure=value.unsure)
        case [ast.Constant(value=constant), ast.Constant(value=None)] if constant is ...:
            dims = None if value.dims is None else value.dims + 1
            return RowTensor(dims, value.first, narrow=True, unsure=value.unsure)
        case _:
            return None


def with_a_dim(rows: RowTensor, operation: Operation[BodyValue]) -> BodyValue:
    """Rows with a dim of 1 more or less behind the first; a dim that may not be 1 stays if it is not."""
    dims, is_more = reduced_dims(operation), operation.function == "unsqueeze"
    if rows.dims is None or dims is None or len(dims) != 1 or dims[0] in (0, -rows.dims - is_more):
        return None
    if is_more:
        narrow = rows.narrow or dims[0] in (-1, rows.dims)
        return RowTensor(rows.dims + 1, rows.first, narrow=narrow, unsure=rows.unsure)
    is_last = rows.narrow and dims[0] in (-1, rows.dims - 1)
    return RowTensor(rows.dims - 1 if is_last else None, rows.first, unsure=rows.unsure)


def of_torch(operation: Operation[BodyValue]) -> Operation[BodyValue] | None:
    """The operation of torch that has the name of one of NumPy; None if it is none of NumPy."""
    if not operation.is_method or not operation.positional:
        return None
    match operation.node:
        case ast.Call(ast.Attribute(ast.Name(name) | ast.Attribute(ast.Name(name)))) if name in NUMPY:
            [source, *others], positional = operation.others, operation.positional[1:]
            return replace(operation, source=source, others=others, positional=positional, is_method=False)
    return None


def role_output(operation: Operation[BodyValue]) -> RoleOutput | None:
    """The output of a method or model of the role, if it gets rows; None of anything else."""
    function = operation.node.func if isinstance(operation.node, ast.Call) else operation.node
    while isinstance(function, ast.Attribute):
        function = function.value
    firsts: set[First] = {value.first for value in operation.others if isinstance(value, RowTensor)}
    is_of_role = isinstance(function, ast.Name) and function.id == "self"
    return RoleOutput(*firsts) if is_of_role and firsts in ({"rows"}, {"reordered"}) else None


def operands_of(node: ast.expr) -> Sequence[ast.expr]:
    """The operands of an operator, and of a method or function."""
    match node:
        case ast.BinOp(left, _, right):
            return [left, right]
        case ast.Compare(left, _, others):
            return [left, *others]
        case ast.UnaryOp(_, operand):
            return [operand]
        case ast.Call(ast.Attribute(source), positional, named):
            module = [] if isinstance(source, ast.Name) and source.id in ("torch", *NUMPY) else [source]
            return [*module, *positional, *(keyword.value for keyword in named)]
    return []


def adds_dims(node: ast.expr, values: Sequence[BodyValue], dims: int) -> bool:
    """Whether an unknown operand has more dims, ``levels[:, None]`` beside ``y``, so that rows are the last one."""
    return any(
        value is None and isinstance(operand, ast.Subscript) and _index_length(operand.slice) > dims
        for value, operand in zip(values, operands_of(node), strict=False)
    )


def _index_length(index: ast.expr) -> int:
    """The number of dims that an index has at least, if it adds the last one; 0 otherwise."""
    match index:
        case ast.Tuple([*parts, ast.Constant(None)]):
            return len(parts) + 1
    return 0
