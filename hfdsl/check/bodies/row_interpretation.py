"""The interpretation of a body in rows: does what it returns depend on other rows?

A worked example, a body that returns a number of each row and a loss::

    weights = mask / mask.sum()                        rows, mixed with a statistic of all
    loss = (losses * weights).sum()                    a statistic, as (losses * mask).sum() / mask.sum() is
    return Learned(share=weights.sum(1), loss=loss)    the column 'share' is mixed, the metric is a number

What is mixed stays so through whatever a body does with it: in functions that are not followed, in loops and branches,
and in what it puts into a list. Only a reduction over rows makes a statistic of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import FunctionType
from typing import Any, Final, get_args

from hfdsl.check.bodies.changes import changed_names, loop_values
from hfdsl.check.bodies.interpretation import SUBSCRIPT, Interpretation, Operation, RowGroups
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.row_tensors import (
    CASTS,
    DRAWN_ORDERS,
    FILLED,
    FORMS,
    ORDERS,
    OUTPUT_FORMS,
    REDUCTIONS,
    REORDERINGS,
    ROWWISE,
    STATISTICS,
    VIEWS,
    BodyValue,
    First,
    Mixed,
    RoleOutput,
    RowTensor,
    SortedRows,
    Unfollowed,
    adds_dims,
    dim_numbers,
    functions,
    indexed,
    is_metadata,
    mixed_here,
    mixed_of,
    of_torch,
    reduced,
    reduced_dims,
    role_output,
    set_in_part,
    with_a_dim,
    with_mixed,
)
from hfdsl.check.bodies.row_views import viewed
from hfdsl.check.bodies.specialized import bound_constants, specialized
from hfdsl.check.bodies.syntax import STATEMENTS, assigned_names, definition_of, is_decorated
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.signatures import PortType
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import constant

JOINS: Final = functions("cat concat concatenate stack")
"""Functions that join tensors."""

DEPTH: Final = 3
"""How deep calls of functions within functions are followed."""

COLLECTIVES: Final = re.compile(r"all_?(gather|reduce)\w*|broadcast|reduce\w*")
"""The names of functions that put a value of all ranks in the place of an argument."""


class RowInterpretation(Interpretation[BodyValue]):
    """The interpretation of a body in rows, ``depth`` functions below the one that a dataflow calls.

    ``mixed`` are the expressions that are wrong wherever their values go. ``returned`` is what a body returns, and
    ``columns`` are the values of a record's columns, each with its expression. ``metrics`` are those that are no rows.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        definition: Function,
        group: RowGroups,
        ports: Mapping[str, PortType],
        depth: int = 0,
        metrics: AbstractSet[str] = frozenset(),
    ) -> None:
        super().__init__(body, definition, group, ports)
        self.depth, self.metrics, self.mixed = depth, metrics, list[Mixed]()
        self.returned: BodyValue = None
        self.columns = dict[str, tuple[ast.expr, BodyValue]]()
        self.within: tuple[Mixed, ...] = ()
        """The expressions that mixed rows in the parts of the expression whose value is computed."""

    # -- statements

    def statements(self) -> Iterator[ast.stmt]:
        """The statements that run in every call; others pass on what is mixed."""
        for place, statement in enumerate(self.definition.body):
            if isinstance(statement, STATEMENTS):
                yield statement
                self.run(statement)
            else:
                self.pass_on(statement)
            if any(isinstance(node, (ast.Return, ast.Raise)) for node in nodes_of(statement)):
                for later in self.definition.body[place + 1 :]:
                    self.pass_on(later)
                return

    def run(self, statement: ast.stmt) -> None:
        """Run a statement, also one that sets a part of a value, changes it in place, or returns columns."""
        self.within = ()
        super().run(statement)
        match statement:
            case ast.Assign([ast.Subscript(ast.Name(name))], value) | ast.AugAssign(
                ast.Subscript(ast.Name(name)), _, value
            ):
                self.names[name] = with_mixed(set_in_part(self.names.get(name)), mixed_of(self.value(value)))
            case ast.Expr(ast.Call(function) as call):
                self.call_for_its_effect(call, function)
            case ast.Return(ast.Call(keywords=[_, *_] as columns) as value):
                self.columns = {str(column.arg): (column.value, self.value(column.value)) for column in columns}
                self.returned = self.value(value)
            case ast.Return(ast.expr() as value):
                self.returned = self.value(value)

    def call_for_its_effect(self, call: ast.Call, function: ast.expr) -> None:
        """Call what changes values in place: a method its own, and a collective its arguments."""
        value = self.value(call)
        self.replace_arguments(call)
        method = function.attr if isinstance(function, ast.Attribute) else ""
        while isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            function = function.value.func  # x.sub_(1).mul_(2) changes x
        match function:
            case ast.Attribute(ast.Name(name)) if name in self.assigned:
                before = self.names.get(name)
                is_computed = method.endswith("_") and isinstance(before, RowTensor) and isinstance(value, RowTensor)
                self.names[name] = with_mixed(value if is_computed else set_in_part(before), mixed_of(value))

    def replace_arguments(self, call: ast.Call) -> None:
        """Forget the arguments in whose place a collective puts a value of all ranks."""
        if COLLECTIVES.fullmatch(last_name(call.func)):
            arguments = (*call.args, *(keyword.value for keyword in call.keywords))
            self.names |= {argument.id: None for argument in arguments if isinstance(argument, ast.Name)}

    def pass_on(self, statement: ast.stmt) -> None:
        """Pass on what is mixed through statements that may run, or run several times."""
        for node in nodes_of(statement):
            if isinstance(node, ast.Call):
                self.replace_arguments(node)
        flows = [flow for node in nodes_of(statement) for flow in self.flows(node)]
        for _ in range(2):
            for changed, read in flows:
                mixed = self.mixed_in(*read)
                if changed is None:
                    self.returned = with_mixed(self.returned, mixed)
                elif mixed:
                    self.names[changed] = with_mixed(self.names.get(changed), mixed)

    def mixed_in(self, *nodes: ast.AST) -> tuple[Mixed, ...]:
        """The expressions that mixed the values of the names that others read."""
        names = {part.id for node in nodes for part in nodes_of(node) if isinstance(part, ast.Name)}
        values: list[BodyValue] = [self.names.get(name) for name in sorted(names)]
        return mixed_of(*values)

    def flows(self, node: ast.AST) -> Iterator[tuple[str | None, Sequence[ast.AST]]]:
        """The names that a statement changes, each with what it may have from then on; None stands for the result."""
        match node:
            case ast.Return(ast.Call(_, positional, named)):
                columns = [column.value for column in named if column.arg not in self.metrics]
                yield None, [*positional, *columns]
            case ast.Return(ast.expr() as value):
                yield None, [value]
            case ast.Assign(targets, value):
                yield from ((name, [value]) for target in targets for name in changed_names(target))
            case ast.AnnAssign(target, _, ast.expr() as value) | ast.AugAssign(target, _, value):
                yield from ((name, [value]) for name in changed_names(target))
            case ast.For(target, iterated) | ast.comprehension(target, iterated):
                yield from ((name, [source]) for name, source in loop_values(target, iterated))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name)), positional)) if name in self.assigned:
                yield name, positional

    def set(self, target: ast.expr, value: BodyValue) -> None:
        """Set the value of a name; one that is uncertain may be mixed."""
        super().set(target, value)
        for name in assigned_names(target) & self.uncertain if mixed_of(value) else ():
            self.names[name] = Unfollowed(mixed_of(value))

    # -- expressions

    def value(self, node: ast.expr) -> BodyValue:
        """The value of an expression, mixed as its parts are unless it is a statistic, or says nothing of values."""
        around, self.within = self.within, ()
        result = with_mixed(self.value_of_parts(node), () if is_metadata(node) else self.within)
        self.within = (*around, *mixed_of(result))
        return result

    def value_of_parts(self, node: ast.expr) -> BodyValue:
        """The value of an expression whose parts may be mixed."""
        match node:
            case ast.Call(function, [ast.List(parts) | ast.Tuple(parts), *_]) if last_name(function) in JOINS:
                return self.joined(node, parts)
            case ast.List(parts) | ast.Tuple(parts):
                return with_mixed(None, mixed_of(*map(self.value, parts)))
            case ast.ListComp(_, [first, *_]) | ast.GeneratorExp(_, [first, *_]):
                return with_mixed(None, mixed_of(self.value(first.iter), with_mixed(None, self.mixed_in(node))))
            case ast.IfExp() | ast.BoolOp() | ast.Starred() | ast.Dict():
                return with_mixed(None, self.mixed_in(node))
            case ast.Call(_, [], columns) if not self.metrics.isdisjoint(str(column.arg) for column in columns):
                rows = (column.value for column in columns if column.arg not in self.metrics)
                return with_mixed(None, mixed_of(*map(self.value, rows)))
        return super().value(node)

    def joined(self, node: ast.Call, parts: Sequence[ast.expr]) -> BodyValue:
        """Tensors that are joined along another dim than the first: rows, in the order of all of them."""
        argument = next((word.value for word in node.keywords if word.arg in ("axis", "dim")), None)
        dims = dim_numbers(node.args[1] if argument is None and len(node.args) > 1 else argument or ast.Constant(0))
        values = [*map(self.value, parts)]
        firsts: set[First] = {value.first for value in values if isinstance(value, (RowTensor, RoleOutput))}
        is_behind = last_name(node.func) == "stack" or any(
            isinstance(v, RowTensor) and (v.dims or 0) > 1 for v in values
        )
        if not firsts or not firsts <= {"rows", "reordered"} or not dims or dims[0] < -is_behind or dims[0] == 0:
            return None
        mixed = (Mixed(node, "reordered"),) if len(firsts) > 1 else ()
        return RowTensor(None, "rows" if mixed else firsts.pop(), mixed=mixed, unsure=True)

    def of_column(self, spec: ColumnSpec, path: str) -> BodyValue:
        """The rows of the call."""
        return RowTensor(len(spec.dims), column=path, narrow=spec.dims[1:][-1:] == (constant(1),))

    def of_part(self, value: BodyValue, position: int) -> BodyValue:
        """The parts of a statistic are statistics."""
        if isinstance(value, SortedRows):
            return value.values.reordered() if position == 0 else "order"
        if value in STATISTICS:
            return "statistic"
        return with_mixed(None, mixed_of(value))

    def of_operation(self, operation: Operation[BodyValue]) -> BodyValue:
        """The result of an operation on rows or on statistics."""
        if (same := of_torch(operation)) is not None:
            result = self.of_operation(same)
            return result.values.reordered() if isinstance(result, SortedRows) else result
        function, source = operation.function, operation.source
        if function in DRAWN_ORDERS:
            return "order"
        if source is None and operation.is_method:
            return role_output(operation)
        if isinstance(source, RoleOutput) and function in OUTPUT_FORMS:
            return source
        return self.of_values(operation)

    def of_values(self, operation: Operation[BodyValue]) -> BodyValue:
        """The result of an operation whose source may be known."""
        function, source = operation.function, operation.source
        if function == SUBSCRIPT:
            return self.element(source, operation.positional[0], operation.others[0])
        if function in CASTS or (source == "order" and function in REORDERINGS | {"argsort"}):
            return source
        if function.removesuffix("_") in ROWWISE:
            return self.combined(operation.node, [source, *operation.others])
        if function == "matmul":
            product = self.combined(operation.node, [source, *operation.others])
            if isinstance(product, RowTensor):
                of_rows = RowTensor(None, product.first, mixed=product.mixed)
                return of_rows if isinstance(source, RowTensor) else None
            return product
        if isinstance(source, SortedRows) and function in ("indices", "values"):
            return self.of_part(source, ("values", "indices").index(function))
        if isinstance(source, RowTensor) and function not in FILLED:
            return self.of_rows(source, operation)
        if function in FILLED:
            return None if STATISTICS.isdisjoint(operation.others) else "statistic"
        if source == "across groups" and function in FORMS | VIEWS:
            return source
        return "statistic" if function in FORMS | REDUCTIONS | ORDERS | VIEWS and source in STATISTICS else None

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
            case RowTensor(), _ if isinstance(index_value, RowTensor):
                return RowTensor(None, "selected")
            case RowTensor(), ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1))):
                return source.reordered()
            case RowTensor(), _:
                return indexed(source, index)
            case "order", _:
                return "statistic"
            case RoleOutput(first), ast.Tuple([ast.Slice(None, None, None), *_]):
                return RowTensor(None, first, unsure=True)
            case RoleOutput(), _:
                return None
        return source

    def of_rows(self, rows: RowTensor, operation: Operation[BodyValue]) -> BodyValue:
        """The result of a function that is not computed row by row, on rows."""
        function, positional = operation.function, operation.positional
        if function in VIEWS:
            return viewed(rows, function, positional, self, is_called=self.depth > 0)
        if function in ("squeeze", "unsqueeze"):
            return with_a_dim(rows, operation)
        if function == "masked_select":
            return RowTensor(1, "selected")
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
        if (
            rows.first == "groups"
            and rows.dims == 2
            and function in REDUCTIONS
            and reduced_dims(operation) in ((0,), (-2,))
            and self.group.size > 1
        ):
            return "across groups"
        if result == "statistic" and function in REORDERINGS:
            return rows.reordered()
        if result == "statistic" and function == "sort" and rows.dims == 1:
            return SortedRows(rows)
        return "order" if result == "statistic" and function == "argsort" and rows.dims == 1 else result

    def combined(self, node: ast.expr, values: Sequence[BodyValue]) -> BodyValue:
        """Compute row by row from several values, which mixes rows with a statistic of all, or with other groups."""
        rows = [value for value in values if isinstance(value, RowTensor)]
        firsts = {value.first for value in rows}
        has_statistic, mixed = not STATISTICS.isdisjoint(values), mixed_of(*values)
        if rows and (has_statistic or {"rows", "reordered"} <= firsts):
            mixed = (*mixed, Mixed(node, "statistic"))
        if "across groups" in values and "groups" in firsts:
            mixed = (*mixed, Mixed(node, "across groups"))
        if {"rows", "repeated groups"} <= firsts:
            self.mixed.append(Mixed(node, "repeated groups"))
        if rows:
            dims = [value.dims for value in rows if value.dims is not None]
            first = next(first for first in get_args(First)[::-1] if first in firsts)
            of_all = max(dims) if len(dims) == len(rows) else None
            if of_all is not None and adds_dims(node, values, of_all):
                return with_mixed(None, mixed)
            widest = [value for value in rows if value.dims == of_all]
            return RowTensor(
                of_all,
                "rows" if len(firsts) > 1 else first,
                mixed=mixed,
                narrow=all(value.narrow for value in widest),
                unsure=any(value.unsure for value in widest),
            )
        if "across groups" in values:
            return "across groups"
        outputs = {value for value in values if isinstance(value, RoleOutput)}
        if len(outputs) == 1 and not has_statistic and not mixed:
            return outputs.pop()
        return "statistic" if has_statistic else with_mixed(None, mixed)

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
        parameters = [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)]
        values = dict(zip(parameters, positional, strict=False)) | dict(named)
        tensors = frozenset(name for name, value in values.items() if value is not None)
        definition = specialized(definition, bound_constants(definition, call), tensors)
        inner = type(self)(function, definition, self.inner_group(parameters, call), {}, self.depth + 1)
        inner.names |= values
        inner.names |= {name: with_mixed(None, mixed_of(values.get(name))) for name in inner.uncertain}
        self.pass_up(call, inner.completed())
        return mixed_here(inner.returned, call)

    def pass_up(self, call: ast.Call, inner: RowInterpretation) -> None:
        """Collect a call of a function whose expressions are wrong."""
        if inner.mixed:
            self.mixed.append(Mixed(call, inner.mixed[0].mix))

    def inner_group(self, parameters: Sequence[str], call: ast.Call) -> RowGroups:
        """The groups of a plan in a function that a body calls, and its parameter that has their size."""
        arguments = [*zip(parameters, call.args, strict=False), *((word.arg, word.value) for word in call.keywords)]
        sizes = [name for name, node in arguments if isinstance(node, ast.Name) and node.id == self.group.parameter]
        return RowGroups(self.group.size, sizes[0] if len(sizes) == 1 else None)
