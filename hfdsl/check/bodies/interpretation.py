"""Abstract interpretation of bodies: what a body computes in every call, in the values of a rule.

A rule says what the value of a column and the result of an operation are. An interpretation keeps the values of names,
statement by statement::

    gains = rewards.gain.tensor                   of_column(f32[B])
    groups = gains.view(-1, 8)                    of_operation(view of gains)
    spread = groups.std(1, keepdim=True)          of_operation(std of groups)
    return Gains(gain=(groups / spread).view(-1)) of_operation(div of groups and spread), of_operation(view of that)

``torch.std(x, 1)`` and ``x.std(1)`` are one operation, and so are ``x / y`` and ``x.div(y)``. The value of a name that
a branch or a loop sets is unknown; ``flow.py`` has the interpreter that follows these, too. The interpretation of a
rule derives from one of the two, and not from that of another rule.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from hfdsl.check.bodies.names import local_names, value_of
from hfdsl.check.bodies.scopes import FunctionScope
from hfdsl.check.bodies.syntax import STATEMENTS, assigned_names, callee, certain_statements
from hfdsl.check.sources import Function
from hfdsl.graph.signatures import PortType, RecordType, Signature
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.rows import group_size

V = TypeVar("V")

MODULES = frozenset({"F", "nn.functional", "torch", "torch.nn.functional"})
"""The modules whose functions take a tensor as their first argument."""

OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.MatMult: "matmul",
    ast.Div: "div",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "pow",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "bitwise_left_shift",
    ast.RShift: "bitwise_right_shift",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.UAdd: "positive",
    ast.USub: "neg",
    ast.Invert: "bitwise_not",
}
"""By operator the function of torch that it calls; ``is``, ``in`` and ``not`` call none."""

SUBSCRIPT = "getitem"
"""The operation of ``x[index]``."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[V]):
    """A function of torch, on the value of a tensor and those of its other arguments.

    ``positional`` and ``named`` are these arguments as the body writes them. If ``is_method``, the operation is written
    ``source.function(...)``: a source of unknown value may be no tensor.
    """

    function: str
    node: ast.expr
    source: V | None
    others: Sequence[V | None] = ()
    positional: Sequence[ast.expr] = ()
    named: Mapping[str | None, ast.expr] = field(default_factory=dict)
    is_method: bool = False

    @property
    def other(self) -> V | None:
        """The value of the first argument beside the tensor."""
        return next(iter(self.others), None)

    @property
    def named_values(self) -> Mapping[str | None, V | None]:
        """The values of named arguments."""
        return dict(zip(self.named, self.others[len(self.others) - len(self.named) :], strict=True))


class RowGroups(NamedTuple):
    """How many rows a plan keeps together, and the parameter of the body that has this number."""

    size: int
    parameter: str | None

    @classmethod
    def of(cls, signature: Signature) -> Self:
        """The groups that the body of a signature declares."""
        return cls(group_size(signature.rows), signature.group_parameter)


def sizes_of_view(function: str, positional: Sequence[ast.expr]) -> Sequence[ast.expr]:
    """The sizes that rows of one number get: of ``x.view(-1, 4)``, ``x.view((-1, 4))``, ``x.unflatten(0, (-1, 4))``."""
    match positional:
        case [ast.Constant(value=0), ast.Tuple(sizes) | ast.List(sizes)] if function == "unflatten":
            return sizes
        case [ast.Tuple(sizes) | ast.List(sizes)] if function in ("reshape", "view"):
            return sizes
    return positional


def ports_of(signature: Signature) -> Mapping[str, PortType]:
    """The types of a body's parameters, by name."""
    return {port.name: port.type for port in signature.ports}


class Interpretation(Generic[V]):
    """The interpretation of a body in values of a subclass; None is an unknown value."""

    def __init__(
        self,
        body: Callable[..., Any],
        definition: Function,
        group: RowGroups,
        ports: Mapping[str, PortType],
    ) -> None:
        self.body, self.definition, self.group, self.ports = body, definition, group, ports
        self.names: dict[str, V | None] = {}
        self.scope = FunctionScope(body, definition)
        compound = (node for node in definition.body if not isinstance(node, (*STATEMENTS, ast.Pass)))
        self.uncertain = frozenset(name for statement in compound for name in assigned_names(statement))

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters."""
        return self.scope.parameters

    @property
    def assigned(self) -> frozenset[str]:
        """The names that statements set."""
        return self.scope.assigned

    @classmethod
    def of(cls, signature: Signature, definition: Function) -> Self:
        """The interpretation of a body that a dataflow calls."""
        return cls(signature.body, definition, RowGroups.of(signature), ports_of(signature))

    # -- the values of a rule

    def of_column(self, spec: ColumnSpec, path: str) -> V | None:
        """The value of a dense column of an argument, ``path`` in the body, such as ``rewards.gain``."""
        return None

    def of_operation(self, operation: Operation[V]) -> V | None:
        """The result of an operation."""
        return None

    def of_call(
        self, call: ast.Call, function: FunctionType, positional: Sequence[V | None], named: Mapping[str, V | None]
    ) -> V | None:
        """The result of a function of the body's module, or of one of hfdsl."""
        return None

    def of_part(self, value: V | None, position: int) -> V | None:
        """The part of a tuple of tensors at a position."""
        return None

    # -- statements

    def statements(self) -> Iterator[ast.stmt]:
        """The statements that run in every call, each while names have their values from before it."""
        for statement in certain_statements(self.definition):
            yield statement
            self.run(statement)

    def completed(self) -> Self:
        """The interpretation after all these statements."""
        for _ in self.statements():
            pass
        return self

    def run(self, statement: ast.stmt) -> None:
        """Set the names that a statement sets."""
        match statement:
            case ast.Assign(targets, value):
                for target in targets:
                    self.assign(target, value)
            case ast.AnnAssign(target, _, ast.expr() as value):
                self.assign(target, value)
            case ast.AugAssign(ast.Name(name) as target, operator, value):
                self.set(target, self.operation(operator, value, self.names.get(name), [self.value(value)]))

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        """Assign an expression to a name, or its parts to a tuple of names."""
        match target, node:
            case ast.Tuple(targets), ast.Tuple(parts) if len(targets) == len(parts):
                values = [self.value(part) for part in parts]
            case ast.Tuple(targets), _:
                value = self.value(node)
                values = [self.of_part(value, position) for position in range(len(targets))]
            case _:
                targets, values = [target], [self.value(node)]
        for name, value in zip(targets, values, strict=True):
            self.set(name, value)

    def set(self, target: ast.expr, value: V | None) -> None:
        """Set the value of a name from here on; names in a tuple within a tuple, or after a star, are unknown."""
        names = assigned_names(target)
        is_certain = isinstance(target, ast.Name) and names.isdisjoint(self.uncertain)
        self.names |= dict.fromkeys(names, value if is_certain else None)

    # -- expressions

    def value(self, node: ast.expr) -> V | None:
        """The value of an expression."""
        match node:
            case ast.Name(name):
                return self.names.get(name)
            case ast.Attribute(source, "tensor"):
                return self.column(source)
            case ast.Attribute(source, name):
                return self.of_operation(Operation(name, node, self.value(source), is_method=True))
            case ast.BinOp(left, operator, right):
                return self.operation(operator, node, self.value(left), [self.value(right)])
            case ast.UnaryOp(operator, operand):
                return self.operation(operator, node, self.value(operand), [])
            case ast.Compare(left, [operator, *_], others):
                return self.operation(operator, node, self.value(left), [self.value(operand) for operand in others])
            case ast.Subscript(source, index):
                return self.of_operation(Operation(SUBSCRIPT, node, self.value(source), [self.value(index)], [index]))
            case ast.Call():
                return self.call(node)
            case ast.NamedExpr(ast.Name(name) as target, assigned):
                self.assign(target, assigned)
                return self.names.get(name)
        return None

    def operation(self, operator: ast.AST, node: ast.expr, left: V | None, others: Sequence[V | None]) -> V | None:
        """The result of an operator."""
        function = OPERATORS.get(type(operator))
        return None if function is None else self.of_operation(Operation(function, node, left, others))

    def column(self, node: ast.expr) -> V | None:
        """The tensor of a dense column of an argument that no statement of the body sets."""
        spec: object = None
        match node:
            case ast.Name(name) if name not in self.assigned:
                spec = self.ports.get(name)
            case ast.Attribute(ast.Name(name), column) if (kind := self.record(name)) is not None:
                spec = schema(kind.record).fields.get(column)
        if not isinstance(spec, ColumnSpec) or spec.ragged:
            return None
        return self.of_column(spec, ast.unparse(node))

    def record(self, name: str) -> RecordType | None:
        """The type of the record that a name stands for: of an argument."""
        kind = None if name in self.assigned else self.ports.get(name)
        return kind if isinstance(kind, RecordType) else None

    def call(self, call: ast.Call) -> V | None:
        """The result of a method of a tensor, or of a function: of torch, of Python, of the body's module."""
        positional, is_method = call.args, False
        match call.func:
            case ast.Name("float" | "int" as function) if positional:
                source, positional = self.value(positional[0]), positional[1:]
            case ast.Attribute(module, function) if positional and _path(module) in MODULES:
                source, positional = self.value(positional[0]), positional[1:]
            case ast.Attribute(receiver, function):
                source, is_method = self.value(receiver), True
            case _:
                return self.function_result(call)
        if is_method and source is None and callee(self.body, self.definition, call) is not None:
            return self.function_result(call)
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        others = [self.value(argument) for argument in (*positional, *named.values())]
        operation = Operation(function, call, source, others, positional=positional, named=named, is_method=is_method)
        return self.of_operation(operation)

    def function_result(self, call: ast.Call) -> V | None:
        """The result of a function that is none of torch."""
        positional = [self.value(argument) for argument in call.args]
        named = {str(keyword.arg): self.value(keyword.value) for keyword in call.keywords}
        function = callee(self.body, self.definition, call)
        return None if function is None else self.of_call(call, function, positional, named)

    def number(self, node: ast.expr) -> int | None:
        """The number that an expression is in this call: a literal, the size of groups, or a constant of the module."""
        number: object = None
        match node:
            case ast.Constant(literal):
                number = literal
            case ast.Name(name) if name == self.group.parameter:
                number = self.group.size
            case ast.Name(name) if name not in local_names(self.definition):
                number = value_of(self.body, name)
        return number if type(number) is int else None


def _path(node: ast.expr) -> str:
    """The names of a module, such as ``torch.nn.functional``; empty for another expression."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(inner, name) if path := _path(inner):
            return f"{path}.{name}"
    return ""
