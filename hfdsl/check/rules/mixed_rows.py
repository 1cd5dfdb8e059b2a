"""Mixed rows: does a body that declares independent rows compute them from a statistic over all rows?

A worked example, a function that says nothing about its rows, so that a plan may cut them anywhere::

    @hf.function                                     rows=hf.Independent
    def whiten(gains: Gains) -> Gains:
        x = gains.gain.tensor                        rows of the call
        spread = x.std() + 1e-6                      one number of all of them
        return Gains(gain=(x - x.mean()) / spread)   HF338: rows with a number of all of them

On two ranks each half is whitened by its own mean, and nothing fails. The rule evaluates the statements that run in
every call on two kinds of values: *rows*, whose first dim are the rows of the call, and *statistics*, which a reduction
or an order over that dim gives. It reports where both meet, or where a statistic is returned as a column. In
``x.view(-1, 8)`` the first dim are groups of rows, so that ``.mean(1)`` is a number of each group and ``.mean(0)`` one
of all; ``x.view(8, -1)`` cuts the rows of the call into eight pieces, and every mean of these depends on where a plan
has cut. Of anything else, such as a sum over the ranks, nothing is known and nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hfdsl.check.bodies import STATEMENTS, assigned_names, certain_statements, definition_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.program import FunctionCall, Node
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.protocol import Protocol
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec
from hfdsl.types.rows import Grouped, WholeRows


def _functions(names: str) -> frozenset[str]:
    return frozenset(names.split())


ELEMENTWISE = _functions(
    "abs add bool ceil clamp clip clone contiguous cpu cuda detach div double exp expm1 float floor int log log1p log2 "
    "logical_not long masked_fill maximum minimum mul nan_to_num neg pow reciprocal relu round rsqrt sigmoid sign sqrt "
    "square sub tanh to where"
)
"""Functions of tensors that compute each value from those at the same place."""

REDUCTIONS = _functions(
    "all amax amin any argmax argmin logsumexp max mean median min nanmean norm prod quantile std sum var"
)
"""Functions of a tensor that take all values together, or those along ``dim``."""

ORDERS = _functions("argsort cumprod cumsum flip log_softmax roll softmax sort")
"""Functions along one dim, by default the last: over the first, a value depends on those of other rows."""

DIM_IS_SECOND = ("norm", "quantile", "roll")
"""The functions whose dim follows another number."""

VIEWS = _functions("reshape view")
"""Functions that arrange the values of a tensor in other dims."""

FORMS = _functions("indices item squeeze tolist unsqueeze values")
"""Functions that return a statistic in another form."""


@dataclass(frozen=True, slots=True)
class RowTensor:
    """A tensor whose first dim are the rows of the call, or groups of them.

    ``dims`` is None if the number of its dims is unknown. ``pieces`` are as long as the call has rows for them.
    """

    dims: int | None
    pieces: bool = False


BodyValue: TypeAlias = RowTensor | Literal["statistic"] | None
"""The abstract value of an expression; None if unknown."""


def rows_are_kept_apart(context: Context) -> Iterator[Finding]:
    """HF338: a body that a plan may give a part of the rows computes none of them from a statistic of all."""
    seen = set[object]()
    for node, signature in context.program.graph.bodies:
        if signature.body in seen or hasattr(signature.body, "__wrapped__") or not may_get_a_part(node, signature):
            continue
        seen.add(signature.body)
        definition = definition_of(signature.body)
        mixed = None if definition is None else next(_Body(signature, definition).mixed(), None)
        if mixed is not None:
            whole = "rows=hf.Whole gives it all rows at once"
            per_group = "compute it for each group, as x.view(-1, n).mean(1) does"
            yield Finding(
                "HF338",
                f"'{node.label}' computes rows from a statistic of all that it gets, '{ast.unparse(mixed)}', and "
                f"rows={signature.rows} lets a plan give it a part of them",
                Label(span_of(definition_span(signature.body).file, mixed), "other values for each part"),
                (Label(node.span, "called here"), Label(signature.span, f"declared rows={signature.rows}")),
                notes=(f"{whole}; or {per_group}" if isinstance(signature.rows, Grouped) else whole,),
            )


def may_get_a_part(node: Node, signature: Signature) -> bool:
    """Whether a body may be called with some of the rows, and returns rows. A function with metrics is never cut."""
    returns, registration = signature.returns, signature.registration
    if isinstance(signature.rows, WholeRows):
        return False
    if isinstance(node.op, FunctionCall):
        return isinstance(returns, ColumnSpec) or (
            isinstance(returns, RecordType)
            and not any(isinstance(spec, MetricSpec) for spec in schema(returns.record).fields.values())
        )
    meaning = registration.meaning if registration is not None else None
    has_rows = isinstance(returns, ColumnSpec) or (
        isinstance(returns, RecordType) and schema(returns.record).row is not None
    )
    return has_rows and isinstance(meaning, Protocol) and meaning.splits


class _Body:
    """The abstract evaluation of a body: the values of its names, statement by statement."""

    def __init__(self, signature: Signature, definition: Function) -> None:
        self.definition, self.names = definition, dict[str, BodyValue]()
        self.group = signature.group_parameter
        self.parameters = {port.name: port.type for port in signature.ports}
        simple = (*STATEMENTS, ast.Pass)
        self.uncertain = frozenset(
            name
            for statement in definition.body
            if not isinstance(statement, simple)
            for name in assigned_names(statement)
        )
        self.mixing = list[ast.expr]()

    def mixed(self) -> Iterator[ast.expr]:
        """The expressions that make rows of a statistic of all rows."""
        for statement in certain_statements(self.definition):
            match statement:
                case ast.Assign(targets, value):
                    self.assign(targets, self.value(value))
                case ast.AnnAssign(target, _, ast.expr() as value):
                    self.assign([target], self.value(value))
                case ast.AugAssign(ast.Name(name) as target, _, value):
                    self.assign([target], self.combined(value, [self.names.get(name), self.value(value)]))
                case ast.Return(ast.Call(keywords=columns) as call):
                    self.value(call)
                    returned = [column.value for column in columns if self.value(column.value) == "statistic"]
                    self.mixing += returned if not self.mixing else []
                case ast.Expr(value) | ast.Return(ast.expr() as value):
                    self.value(value)
            yield from self.mixing
            self.mixing.clear()

    def assign(self, targets: list[ast.expr], value: BodyValue) -> None:
        """Set the value of a name from here on; a name in a tuple is unknown."""
        for target in targets:
            names = assigned_names(ast.Expr(target))
            target_value = value if isinstance(target, ast.Name) and names.isdisjoint(self.uncertain) else None
            self.names |= dict.fromkeys(names, target_value)

    def combined(self, node: ast.expr, values: Sequence[BodyValue]) -> BodyValue:
        """Compute elementwise from several values; found if rows meet a statistic of all of them."""
        rows = [value for value in values if isinstance(value, RowTensor)]
        if rows and "statistic" in values:
            self.mixing.append(node)
        if rows:
            dims = [value.dims for value in rows if value.dims is not None]
            return RowTensor(max(dims) if len(dims) == len(rows) else None, any(value.pieces for value in rows))
        return "statistic" if "statistic" in values else None

    def value(self, node: ast.expr) -> BodyValue:
        """Evaluate an expression."""
        match node:
            case ast.Name(name):
                return self.names.get(name)
            case ast.Attribute(source, "tensor"):
                return self.column(source)
            case ast.Attribute(source, name):
                inner = self.value(source)
                return inner if name in FORMS and inner == "statistic" else None
            case ast.BinOp(left, _, right):
                return self.combined(node, [self.value(left), self.value(right)])
            case ast.UnaryOp(_, operand):
                return self.value(operand)
            case ast.Compare(left, _, others):
                return self.combined(node, [self.value(operand) for operand in (left, *others)])
            case ast.Subscript(source, index):
                return _indexed(self.value(source), index)
            case ast.Call():
                return self.call_result(node)
        return None

    def column(self, node: ast.expr) -> BodyValue:
        """The tensor of a dense column of an argument, which no statement of the body sets."""
        spec: object
        match node:
            case ast.Name(name):
                spec = self.parameters.get(name)
            case ast.Attribute(ast.Name(name), column):
                kind = self.parameters.get(name)
                spec = schema(kind.record).fields.get(column) if isinstance(kind, RecordType) else None
            case _:
                return None
        if not isinstance(spec, ColumnSpec) or spec.ragged or name in assigned_names(self.definition):
            return None
        return RowTensor(len(spec.dims))

    def call_result(self, call: ast.Call) -> BodyValue:
        """The result of a method of a tensor, of a function of torch, or of ``float``."""
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        match call.func:
            case ast.Name("float" | "int"):
                return self.value(arguments[0]) if len(arguments) == 1 else None
            case ast.Attribute(ast.Name("torch"), function) if call.args:
                tensor, others, positional = arguments[0], arguments[1:], call.args[1:]
            case ast.Attribute(tensor, function):
                others, positional = arguments, call.args
            case _:
                for argument in arguments:
                    self.value(argument)
                return None
        values: list[BodyValue] = [self.value(operand) for operand in (tensor, *others)]
        if function in ELEMENTWISE:
            return self.combined(call, values)
        if isinstance(values[0], RowTensor) and function in VIEWS:
            return self.viewed(values[0], positional)
        if isinstance(values[0], RowTensor) and function in REDUCTIONS | ORDERS:
            return _reduced(values[0], function, positional, {keyword.arg: keyword.value for keyword in call.keywords})
        return "statistic" if function in FORMS | REDUCTIONS | ORDERS and values[0] == "statistic" else None

    def viewed(self, rows: RowTensor, sizes: list[ast.expr]) -> BodyValue:
        """A view of rows: in groups of a number, or in a number of pieces."""
        match sizes:
            case [ast.UnaryOp(ast.USub(), ast.Constant(1)), _, *_]:
                return RowTensor(len(sizes))
            case [ast.Constant(int()) | ast.Name() as count, ast.UnaryOp(ast.USub(), ast.Constant(1))]:
                is_count = not isinstance(count, ast.Name) or count.id == self.group
                return RowTensor(2, pieces=True) if is_count and rows.dims == 1 else None
        return None


def _reduced(
    rows: RowTensor, function: str, positional: list[ast.expr], named: dict[str | None, ast.expr]
) -> BodyValue:
    """A reduction or an order of rows: a statistic if it goes over the first dim, rows if it goes over others."""
    place = 1 if function in DIM_IS_SECOND else 0
    dim_argument = named.get("dim", named.get("dims", positional[place] if len(positional) > place else None))
    if function in REDUCTIONS and (dim_argument is None or rows.pieces):
        return "statistic"
    dims = dim_numbers(dim_argument) if dim_argument is not None else (-1,)
    if not dims or (rows.dims is None and min(dims) < 0):
        return None
    if not {0, -(rows.dims or 0)}.isdisjoint(dims):
        return "statistic"
    keeps_dims = function in ORDERS or "keepdim" in named or len(positional) > place + 1
    return RowTensor(rows.dims if keeps_dims or rows.dims is None else rows.dims - len(dims))


def dim_numbers(argument: ast.expr) -> tuple[int, ...]:
    """The dims that an argument names; none if it is not a literal."""
    try:
        value = ast.literal_eval(argument)
    except ValueError:
        return ()
    entries = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(entries) if all(type(dim) is int for dim in entries) else ()


def _indexed(value: BodyValue, index: ast.expr) -> BodyValue:
    """Index a value: all rows are left, if the index takes the whole first dim."""
    if not isinstance(value, RowTensor):
        return value
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    match parts:
        case [ast.Slice(None, None, None), *rest]:
            if value.dims is None or any(isinstance(part, ast.Constant) and part.value is ... for part in rest):
                return RowTensor(None)
            added = sum(isinstance(part, ast.Constant) and part.value is None for part in rest)
            removed = sum(not isinstance(part, ast.Slice) for part in rest) - added
            return RowTensor(value.dims + added - removed)
        case [ast.Constant(value=constant), ast.Constant(value=None)] if constant is ...:
            return RowTensor(None if value.dims is None else value.dims + 1)
        case _:
            return None
