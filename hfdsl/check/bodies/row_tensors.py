"""Rows of a body as abstract values: what functions of torch make of the rows of a call.

Of ``x`` with four rows, ``x.view(-1, 2)`` are groups of rows, ``x.view(2, -1)`` pieces as long as the call has rows for
them, ``x.mean(0)`` is a statistic of all rows, and ``x.mean(1)`` a number of each. An interpretation of a body collects
the expressions that compute rows from others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Interpretation, Operation, RowGroups, sizes_of_view
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.sources import Function
from hfdsl.graph.signatures import PortType
from hfdsl.types.columns import ColumnSpec

DEPTH = 3
"""How deep calls of functions within functions are followed."""


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

ROWWISE = ELEMENTWISE.union(OPERATORS.values()) - {"matmul"}
"""The operations that compute each row from the same row of all operands."""

DRAWN_ORDERS = ("randperm",)
"""Functions that draw an order of as many rows as there are."""

CASTS = functions("clone contiguous cpu cuda detach int long to")
"""Functions whose result has the values of their tensor, elsewhere or in another dtype."""

REORDERINGS = functions("flip roll")
"""Functions that put what is along a dim in another order."""

DIM_IS_SECOND = ("norm", "normalize", "quantile", "roll")
"""The functions whose dim follows another number."""

VIEWS = functions("expand flatten repeat repeat_interleave reshape tile unflatten view")
"""Functions that arrange the values of a tensor in other dims, or repeat them."""

FORMS = functions("indices item squeeze tolist unsqueeze values")
"""Functions that return a statistic in another form."""

First: TypeAlias = Literal["rows", "reordered", "pieces", "split groups", "groups", "cut groups", "repeated groups"]
"""What the first dim of a tensor are: the rows of the call, also in another order, pieces as long as it has rows for
them, as many pieces as a group has rows, or groups of rows: whole ones, some that a plan may cut, or the whole ones all
over again."""


@dataclass(frozen=True, slots=True)
class RowTensor:
    """A tensor of the values of rows; ``dims`` is None if the number of its dims is unknown.

    ``column`` is the path of the argument's column whose values it has, also if all rows are in another order.
    """

    dims: int | None
    first: First = "rows"
    column: str | None = None

    def reordered(self) -> RowTensor | None:
        """All these rows in another order; None if they may be in the old one again."""
        return None if self.first == "reordered" else RowTensor(self.dims, "reordered", self.column)


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The result of ``sort``: values, and the order that sorts them."""

    values: RowTensor


STATISTICS = frozenset[object](("statistic", "order"))
"""Numbers that depend on all rows: any, or an order of all rows."""

BodyValue: TypeAlias = RowTensor | SortedRows | Literal["statistic", "order"] | None
"""The abstract value of an expression; None if unknown."""


Mix: TypeAlias = Literal["statistic", "split groups", "cut groups", "repeated groups"]
"""What an expression computes rows from."""


class Mixed(NamedTuple):
    """An expression that computes rows from others."""

    expression: ast.expr
    mix: Mix


class RowInterpretation(Interpretation[BodyValue]):
    """The interpretation of a body in rows, ``depth`` functions below the one that a dataflow calls."""

    def __init__(
        self,
        body: Callable[..., Any],
        definition: Function,
        group: RowGroups,
        ports: Mapping[str, PortType],
        depth: int = 0,
    ) -> None:
        super().__init__(body, definition, group, ports)
        self.depth, self.mixed = depth, list[Mixed]()
        self.returned: BodyValue = None
        self.columns = dict[str, tuple[ast.expr, BodyValue]]()

    def run(self, statement: ast.stmt) -> None:
        """Collect what a statement mixes, too; a statistic that is returned as a column is one of all rows."""
        super().run(statement)
        match statement:
            case (
                ast.Assign([ast.Subscript(ast.Name(name))])
                | ast.AugAssign(ast.Subscript(ast.Name(name)))
                | ast.Expr(ast.Call(ast.Attribute(ast.Name(name))))
            ):
                self.names[name] = _set_in_part(self.names.get(name))
            case ast.Return(ast.Call(keywords=columns) as value):
                self.returned = self.value(value)
                self.columns = {str(column.arg): (column.value, self.value(column.value)) for column in columns}
                for place, column in self.columns.values() if not self.mixed else ():
                    if column in STATISTICS or (isinstance(column, RowTensor) and column.first == "reordered"):
                        self.mixed.append(Mixed(place, "statistic"))
            case ast.Return(ast.expr() as value):
                self.returned = self.value(value)

    def of_column(self, spec: ColumnSpec, path: str) -> BodyValue:
        """The rows of the call."""
        return RowTensor(len(spec.dims), column=path)

    def of_part(self, value: BodyValue, position: int) -> BodyValue:
        """The parts of a statistic are statistics."""
        if isinstance(value, SortedRows):
            return value.values.reordered() if position == 0 else "order"
        return "statistic" if value in STATISTICS else None

    def of_operation(self, operation: Operation[BodyValue]) -> BodyValue:
        """The result of an operation on rows or on statistics."""
        function, source = operation.function, operation.source
        if source is None and operation.is_method:
            return None
        if function == SUBSCRIPT:
            return self.element(source, operation.positional[0], operation.others[0])
        if function in DRAWN_ORDERS:
            return "order"
        if function in CASTS or (source == "order" and function in REORDERINGS | {"argsort"}):
            return source
        if function in ROWWISE:
            return self.combined(operation.node, [source, *operation.others])
        if function == "matmul":
            product = self.combined(operation.node, [source, *operation.others])
            if isinstance(product, RowTensor):
                return RowTensor(None, product.first) if isinstance(source, RowTensor) else None
            return product
        if isinstance(source, SortedRows) and function in ("indices", "values"):
            return self.of_part(source, ("values", "indices").index(function))
        if isinstance(source, RowTensor):
            return self.of_rows(source, operation)
        return "statistic" if function in FORMS | REDUCTIONS | ORDERS and source in STATISTICS else None

    def element(self, source: BodyValue, index: ast.expr, index_value: BodyValue) -> BodyValue:
        """The result of ``source[index]``."""
        match source, index:
            case SortedRows(), ast.Constant(int(position)):
                return self.of_part(source, position)
            case RowTensor(), _ if index_value in STATISTICS:
                rows = source.reordered()
                return rows if rows is None or index_value == "order" else RowTensor(rows.dims, rows.first)
            case RowTensor(first="reordered"), ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())):
                return "statistic"
            case RowTensor(), _:
                return indexed(source, index)
            case "order", _:
                return "statistic"
        return source

    def of_rows(self, rows: RowTensor, operation: Operation[BodyValue]) -> BodyValue:
        """The result of a function that is not computed row by row, on rows."""
        function, positional = operation.function, operation.positional
        if function in VIEWS:
            return self.viewed(rows, function, positional)
        if function == "index_select":
            is_order = [dim_numbers(argument) for argument in positional[:1]] == [(0,)] and "order" in operation.others
            return rows.reordered() if is_order else None
        if function not in REDUCTIONS | ORDERS:
            return None
        result = reduced(rows, operation)
        if isinstance(result, RowTensor) and rows.first == "cut groups":
            self.mixed.append(Mixed(operation.node, "cut groups"))
        if (
            rows.first == "split groups"
            and function in REDUCTIONS
            and reduced_dims(operation) in ((0,), (-(rows.dims or 0),))
        ):
            self.mixed.append(Mixed(operation.node, "split groups"))
        if result == "statistic" and function in REORDERINGS:
            return rows.reordered()
        if result == "statistic" and function == "sort" and rows.dims == 1:
            return SortedRows(rows)
        return "order" if result == "statistic" and function == "argsort" and rows.dims == 1 else result

    def combined(self, node: ast.expr, values: Sequence[BodyValue]) -> BodyValue:
        """Compute row by row from several values, which mixes rows with a statistic of all, or with other groups."""
        rows = [value for value in values if isinstance(value, RowTensor)]
        firsts = {value.first for value in rows}
        has_statistic = not STATISTICS.isdisjoint(values)
        if rows and (has_statistic or {"rows", "reordered"} <= firsts):
            self.mixed.append(Mixed(node, "statistic"))
        if {"rows", "repeated groups"} <= firsts:
            self.mixed.append(Mixed(node, "repeated groups"))
        if rows:
            dims = [value.dims for value in rows if value.dims is not None]
            first = next(first for first in get_args(First)[::-1] if first in firsts)
            return RowTensor(max(dims) if len(dims) == len(rows) else None, "rows" if len(firsts) > 1 else first)
        return "statistic" if has_statistic else None

    def of_call(
        self,
        call: ast.Call,
        function: FunctionType,
        positional: Sequence[BodyValue],
        named: Mapping[str, BodyValue],
    ) -> BodyValue:
        """The result of another function, which is evaluated for these arguments."""
        if is_decorated(function) or not any([*positional, *named.values()]):
            return None
        definition = None if self.depth == DEPTH else definition_of(function)
        if definition is None or any(isinstance(argument, ast.Starred) for argument in call.args):
            return None
        inner = RowInterpretation(function, definition, self.group, {}, self.depth + 1)
        parameters = [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)]
        inner.names |= dict(zip(parameters, positional, strict=False))
        inner.names |= named
        inner.names |= dict.fromkeys(inner.uncertain)
        if inner.completed().mixed:
            self.mixed.append(Mixed(call, inner.mixed[0].mix))
        return inner.returned

    def viewed(self, rows: RowTensor, function: str, sizes: Sequence[ast.expr]) -> BodyValue:
        """Rows in groups of a number, or in a number of pieces; groups as rows again, or repeated."""
        sizes = sizes_of_view(function, sizes)
        if function == "unflatten":
            if rows.dims != 1 or len(sizes) < 2:
                return None
            function = "reshape"
        in_groups = rows.first in ("groups", "cut groups")
        minus_one = ast.UnaryOp(ast.USub(), ast.Constant(1))
        shape = [ast.dump(size) == ast.dump(minus_one) for size in sizes]
        if function in ("view", "reshape") and shape[:1] == [True] and len(shape) > 1:
            if rows.dims == 1 and len(sizes) == 2 and rows.first == "rows":
                whole = self.keeps_whole(sizes[1])
                return None if whole is None else RowTensor(2, "groups" if whole else "cut groups")
            return RowTensor(len(sizes))
        if function in ("view", "reshape") and shape == [False, True]:
            count = self.number(sizes[0])
            if rows.dims != 1 or (count is None and isinstance(sizes[0], ast.Name)):
                return None
            return RowTensor(2, "split groups" if count == self.group.size > 1 else "pieces")
        if function in ("view", "reshape") and shape == [False, True, False] and rows.dims == 2:
            is_split = rows.first == "rows" and self.number(sizes[0]) == self.group.size > 1
            return RowTensor(3, "split groups") if is_split else None
        if in_groups and rows.dims == 2 and (function == "flatten" or shape == [True]):
            return RowTensor(1)
        is_one = [isinstance(size, ast.Constant) and size.value == 1 for size in sizes]
        if in_groups and rows.dims == 1 and len(sizes) == 1 and not is_one[0]:
            return {
                "repeat": RowTensor(1, "repeated groups"),
                "tile": RowTensor(1, "repeated groups"),
                "repeat_interleave": RowTensor(1),
            }.get(function)
        return RowTensor(len(sizes), rows.first) if function == "expand" and in_groups else None

    def keeps_whole(self, size: ast.expr) -> bool | None:
        """Whether a plan keeps groups of this size whole; None for a size that nobody knows."""
        kept, parameter = self.group
        match size:
            case ast.Name(name) if name == parameter:
                return True
            case ast.Name(name) if name in self.parameters - self.assigned:
                return False if kept == 1 and parameter is None and self.depth == 0 else None
        count = self.number(size)
        return None if count is None or count < 1 else kept % count == 0


def _set_in_part(value: BodyValue) -> BodyValue:
    """A value after a statement has set some of it, in place: an order may be any, and a column has other values."""
    match value:
        case RowTensor(dims, first):
            return RowTensor(dims, first)
        case "order":
            return "statistic"
    return value


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
    keeps_dims = (
        function in ORDERS or "keepdim" in operation.named or len(operation.positional) > _dim_place(function) + 1
    )
    return RowTensor(rows.dims if keeps_dims or rows.dims is None else rows.dims - len(dims), rows.first)


def reduced_dims(operation: Operation[BodyValue]) -> tuple[int, ...] | None:
    """The dims of a reduction or an order: None if it names none, and no number if they are not literals."""
    named, place = operation.named, _dim_place(operation.function)
    positional = operation.positional[place] if len(operation.positional) > place else None
    argument = named.get("dim", named.get("dims", positional))
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


def indexed(value: RowTensor, index: ast.expr) -> BodyValue:
    """Index rows: all rows are left, if the index takes the whole first dim."""
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
