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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from hfdsl.check.bodies import STATEMENTS, assigned_names, callee, certain_statements, definition_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.row_tensors import (
    DRAWN_ORDERS,
    ELEMENTWISE,
    FORMS,
    MODULES,
    ORDERS,
    REDUCTIONS,
    VIEWS,
    BodyValue,
    First,
    RowTensor,
    indexed,
    reduced,
)
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.program import FunctionCall, Node
from hfdsl.graph.signatures import PortType, RecordType, Signature
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.protocol import Protocol
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec
from hfdsl.types.rows import Grouped, WholeRows, group_size

DEPTH = 3
"""How deep calls of functions within functions are followed."""

Mix: TypeAlias = Literal["statistic", "cut groups", "repeated groups"]
"""What an expression computes rows from."""


WORDS: Mapping[Mix, tuple[str, str, str]] = {
    "statistic": (
        (
            "'{label}' computes rows from a statistic of all that it gets, '{code}', and rows={rows} lets a plan give "
            "it a part of them"
        ),
        "other values for each part",
        "rows=hf.Whole gives it all rows at once",
    ),
    "cut groups": (
        "'{label}' computes with groups of rows, '{code}', and rows={rows} lets a plan cut them",
        "other values where a group is cut",
        "rows=hf.Grouped(n) keeps groups of n rows together; rows=hf.GroupedBy('n') has a function's parameter say n",
    ),
    "repeated groups": (
        "'{label}' computes rows with the numbers of all groups in turn, '{code}': a row meets that of another group",
        "the first rows meet one group each",
        ".repeat_interleave(n) gives each of the n rows of a group its number",
    ),
}
"""The message of each, the label of the expression, and advice."""


def rows_are_kept_apart(context: Context) -> Iterator[Finding]:
    """HF338: a body computes no row from a statistic of all, where it may get a part of them, or of another group."""
    seen = set[object]()
    for node, signature in context.program.graph.bodies:
        if signature.body in seen or hasattr(signature.body, "__wrapped__"):
            continue
        seen.add(signature.body)
        definition = definition_of(signature.body)
        mixed = () if definition is None else _Body.of(signature, definition).mixed()
        may_be_cut = may_get_a_part(node, signature)
        for expression, mix in mixed:
            if may_be_cut or mix == "repeated groups":
                yield _finding(node, signature, expression, mix)
                break


def _finding(node: Node, signature: Signature, mixed: ast.expr, mix: Mix) -> Finding:
    message, label, note = WORDS[mix]
    if mix == "statistic" and isinstance(signature.rows, Grouped):
        note += "; or compute it for each group, as x.view(-1, n).mean(1) does"
    declared = Label(signature.span, f"declared rows={signature.rows}")
    return Finding(
        "HF338",
        message.format(label=node.label, code=ast.unparse(mixed), rows=signature.rows),
        Label(span_of(definition_span(signature.body).file, mixed), label),
        (Label(node.span, "called here"), *(() if mix == "repeated groups" else (declared,))),
        notes=(note,),
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
    """The abstract evaluation of a body: the values of its names, statement by statement.

    ``group`` is the number of rows that a plan keeps together, and the parameter that has it.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        definition: Function,
        group: tuple[int, str | None],
        parameters: Mapping[str, PortType],
        depth: int = 0,
    ) -> None:
        self.body, self.definition, self.depth = body, definition, depth
        self.group, self.parameters, self.names = group, parameters, dict[str, BodyValue]()
        simple = (*STATEMENTS, ast.Pass)
        self.uncertain = frozenset(
            name
            for statement in definition.body
            if not isinstance(statement, simple)
            for name in assigned_names(statement)
        )
        self.mixing = list[tuple[ast.expr, Mix]]()
        self.returned: BodyValue = None

    @classmethod
    def of(cls, signature: Signature, definition: Function) -> _Body:
        """The evaluation of what a dataflow calls."""
        group = group_size(signature.rows), signature.group_parameter
        return cls(signature.body, definition, group, {port.name: port.type for port in signature.ports})

    def mixed(self) -> Iterator[tuple[ast.expr, Mix]]:
        """The expressions that make rows of numbers of others."""
        for statement in certain_statements(self.definition):
            match statement:
                case ast.Assign(targets, value):
                    self.assign(targets, self.value(value))
                case ast.AnnAssign(target, _, ast.expr() as value):
                    self.assign([target], self.value(value))
                case ast.AugAssign(ast.Name(name) as target, _, value):
                    self.assign([target], self.combined(value, [self.names.get(name), self.value(value)]))
                case ast.Return(ast.Call(keywords=columns) as call):
                    self.returned = self.value(call)
                    for column in columns if not self.mixing else ():
                        returned = self.value(column.value)
                        if returned == "statistic" or (
                            isinstance(returned, RowTensor) and returned.first == "reordered"
                        ):
                            self.mixing.append((column.value, "statistic"))
                case ast.Return(ast.expr() as value):
                    self.returned = self.value(value)
            yield from self.mixing
            self.mixing.clear()

    def assign(self, targets: list[ast.expr], value: BodyValue) -> None:
        """Set the value of a name from here on; a name in a tuple is unknown, unless all are statistics."""
        for target in targets:
            names = assigned_names(ast.Expr(target))
            is_known = isinstance(target, ast.Name) or (isinstance(target, ast.Tuple) and value == "statistic")
            self.names |= dict.fromkeys(names, value if is_known and names.isdisjoint(self.uncertain) else None)

    def combined(self, node: ast.expr, values: Sequence[BodyValue]) -> BodyValue:
        """Compute elementwise from several values; found if rows meet a statistic of all of them, or other groups."""
        rows = [value for value in values if isinstance(value, RowTensor)]
        firsts = {value.first for value in rows}
        if rows and ("statistic" in values or {"rows", "reordered"} <= firsts):
            self.mixing.append((node, "statistic"))
        if {"rows", "repeated groups"} <= firsts:
            self.mixing.append((node, "repeated groups"))
        if rows:
            dims = [value.dims for value in rows if value.dims is not None]
            first = next(first for first in get_args(First)[::-1] if first in firsts)
            return RowTensor(max(dims) if len(dims) == len(rows) else None, "rows" if len(firsts) > 1 else first)
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
                rows = self.value(source)
                if isinstance(rows, RowTensor) and self.value(index) == "statistic":
                    return None if rows.first == "reordered" else RowTensor(rows.dims, "reordered")
                return indexed(rows, index)
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
        """The result of a method of a tensor, of a function of torch or of the body's module, or of ``float``."""
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        match call.func:
            case ast.Name("float" | "int"):
                return self.value(arguments[0]) if len(arguments) == 1 else None
            case ast.Attribute(module, function) if _path(module) in MODULES and call.args:
                rows, others, positional = self.value(arguments[0]), arguments[1:], call.args[1:]
            case ast.Attribute(tensor, function):
                rows, others, positional = self.value(tensor), arguments, call.args
                if rows is None:
                    return self.called(call)
            case _:
                return self.called(call)
        if function in DRAWN_ORDERS:
            return "statistic"
        values: list[BodyValue] = [self.value(operand) for operand in others]
        if function in ELEMENTWISE:
            return self.combined(call, [rows, *values])
        if isinstance(rows, RowTensor) and function in VIEWS:
            return self.viewed(rows, function, positional)
        if isinstance(rows, RowTensor) and function in REDUCTIONS | ORDERS:
            result = reduced(rows, function, positional, {keyword.arg: keyword.value for keyword in call.keywords})
            if isinstance(result, RowTensor) and rows.first == "cut groups":
                self.mixing.append((call, "cut groups"))
            return result
        return "statistic" if function in FORMS | REDUCTIONS | ORDERS and rows == "statistic" else None

    def called(self, call: ast.Call) -> BodyValue:
        """The result of another function, which is evaluated for these arguments; found if that mixes rows."""
        named = {keyword.arg: self.value(keyword.value) for keyword in call.keywords}
        positional = [self.value(argument) for argument in call.args]
        function = callee(self.body, self.definition, call)
        if function is None or hasattr(function, "__wrapped__") or not any([*positional, *named.values()]):
            return None
        definition = None if self.depth == DEPTH else definition_of(function)
        if definition is None or any(isinstance(argument, ast.Starred) for argument in call.args):
            return None
        inner = _Body(function, definition, self.group, {}, self.depth + 1)
        parameters = [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)]
        inner.names |= dict(zip(parameters, positional, strict=False))
        inner.names |= {name: value for name, value in named.items() if name is not None}
        inner.names |= dict.fromkeys(inner.uncertain)
        if found := next(inner.mixed(), None):
            self.mixing.append((call, found[1]))
        return inner.returned

    def viewed(self, rows: RowTensor, function: str, sizes: list[ast.expr]) -> BodyValue:
        """Rows in groups of a number, or in a number of pieces; groups as rows again, or repeated."""
        in_groups = rows.first in ("groups", "cut groups")
        minus_one = ast.UnaryOp(ast.USub(), ast.Constant(1))
        shape = [ast.dump(size) == ast.dump(minus_one) for size in sizes]
        if function in ("view", "reshape") and shape[:1] == [True] and len(shape) > 1:
            if rows.dims == 1 and len(sizes) == 2 and rows.first == "rows":
                whole = self.keeps_whole(sizes[1])
                return None if whole is None else RowTensor(2, "groups" if whole else "cut groups")
            return RowTensor(len(sizes))
        if function in ("view", "reshape") and shape == [False, True]:
            is_count = not isinstance(sizes[0], ast.Name) or sizes[0].id == self.group[1]
            return RowTensor(2, "pieces") if is_count and rows.dims == 1 else None
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
            case ast.Constant(int(count)) if count > 0:
                return kept % count == 0
            case ast.Name(name) if name == parameter:
                return True
            case ast.Name(name) if name not in assigned_names(self.definition):
                if name in _parameters(self.definition):
                    return False if kept == 1 and parameter is None and self.depth == 0 else None
                constant: Any = getattr(self.body, "__globals__", {}).get(name)
                return kept % constant == 0 if type(constant) is int and constant > 0 else None
        return None


def _parameters(definition: Function) -> frozenset[str]:
    return frozenset(argument.arg for argument in ast.walk(definition.args) if isinstance(argument, ast.arg))


def _path(node: ast.expr) -> str:
    """The names of a module, such as ``torch.nn.functional``; empty for another expression."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(inner, name) if path := _path(inner):
            return f"{path}.{name}"
    return ""
