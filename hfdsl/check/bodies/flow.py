"""Abstract interpretation along the flow of a body: through branches, loops, and functions of the user's.

``Interpretation`` keeps to what runs in every call. A mistake in a formula is one in any branch, so that a flow follows
all of them, with what names are where branches meet again::

    gains = experience.advantage.tensor
    if self.clip:
        loss = self.clipped(gains)          followed into the method of the role
    else:
        loss = gains.mean()
    for _ in range(2):                      followed twice: the second pass has the names of the first
        loss = loss + self.penalty()
    loss.backward()                         of either loss
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any, Self, TypeVar

from hfdsl.check.bodies.interpretation import Interpretation, RowGroups, ports_of
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.bodies.syntax import assigned_names, callee, definition_of, is_partial
from hfdsl.check.sources import Function
from hfdsl.graph.signatures import PortType, RecordType, Signature

V = TypeVar("V")

DEPTH = 4
"""How deep calls of functions within functions are followed."""

MOST_CALLS = 200
"""How many calls of functions are followed in a body at most."""

NO_GRADIENT = frozenset({"inference_mode", "no_grad"})
"""Names of torch for computing without gradients, as a block or as a decorator."""

GRADIENT = frozenset({"enable_grad", "set_grad_enabled"})
"""Names of torch for computing with gradients within such a block."""

IN_PLACE = functions(
    "add_ clamp_ clamp_max_ clamp_min_ clip_ div_ exp_ fill_ index_fill_ log_ logical_and_ masked_fill_ mul_ neg_ pow_ "
    "scatter_ sub_ zero_"
)
"""Methods that change a tensor to what the function without the underscore gives."""

ENDS = (ast.Break, ast.Continue, ast.Raise, ast.Return)
"""Statements after which a block is left."""


class FlowInterpretation(Interpretation[V]):
    """The interpretation of a body in all of its statements; ``methods`` are those of its role."""

    def __init__(
        self,
        body: Callable[..., Any],
        definition: Function,
        group: RowGroups,
        ports: Mapping[str, PortType],
        methods: Mapping[str, ReadFunction] | None = None,
        depth: int = 0,
    ) -> None:
        super().__init__(body, definition, group, ports)
        self.uncertain = frozenset()
        self.methods, self.depth = methods or {}, depth
        self.records = {name: kind for name, kind in ports.items() if isinstance(kind, RecordType)}
        self.partials = dict[str, ast.Call]()  # by name the calls of functools.partial that it is assigned
        self.returned, self.followed = list[V | None](), list[str]()
        self.views = dict[str, str]()  # by name of a part or an element of a tensor the name of that
        self.written = set[str]()  # names of tensors of which something has been changed in place
        self.begin()

    def begin(self) -> None:
        """Begin what a subclass keeps besides."""

    @classmethod
    def of_method(cls, signature: Signature, function: ReadFunction, methods: Mapping[str, ReadFunction]) -> Self:
        """The interpretation of the method of a role that a dataflow calls."""
        return cls(function.body, function.definition, RowGroups.of(signature), ports_of(signature), methods)

    # -- the values of a rule

    def joined(self, left: V | None, right: V | None) -> V | None:
        """The value of a name that is one of two."""
        return left if left == right else None

    def detached(self, value: V | None) -> V | None:
        """A value that has no gradient."""
        return value

    def without_gradient(self) -> AbstractContextManager[object]:
        """A context in which statements compute without gradients."""
        return nullcontext()

    def several(self, values: Sequence[V | None]) -> V | None:
        """A tuple of values."""
        return None

    def of_element(self, value: V | None) -> V | None:
        """An element that a loop takes from a value."""
        return value

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls."""
        inner = type(self)(body, definition, self.group, ports, self.methods, self.depth + 1)
        inner.followed = self.followed
        return inner

    def give(self, inner: FlowInterpretation[V], arguments: Mapping[str, ast.expr]) -> None:
        """Give the interpretation of a function its arguments, as this body writes them."""
        inner.names |= {name: self.value(value) for name, value in arguments.items()}

    @property
    def is_whole(self) -> bool:
        """Whether all calls of functions could be followed."""
        return len(self.followed) < MOST_CALLS

    # -- statements

    def completed(self) -> Self:
        """The interpretation after all statements."""
        self.run_block(self.definition.body)
        return self

    def result(self) -> V | None:
        """The value that the body returns."""
        value, *others = self.returned or [None]
        for other in others:
            value = self.joined(value, other)
        return value

    def run_block(self, block: Sequence[ast.stmt]) -> bool:
        """Run statements in order; return whether the block is left before its end."""
        for statement in block:
            self.run(statement)
            if isinstance(statement, ENDS):
                return True
            if isinstance(statement, ast.If) and self.branch(statement):
                return True
        return False

    def branch(self, statement: ast.If) -> bool:
        """Run both branches; return whether both leave the block."""
        self.value(statement.test)
        before = dict(self.names)
        leaves = self.run_block(statement.body)
        after, self.names = self.names, before
        leaves_otherwise = self.run_block(statement.orelse)
        if leaves_otherwise:
            self.names = after
        elif not leaves:
            names = after.keys() | self.names.keys()
            self.names = {name: self.joined(after.get(name), self.names.get(name)) for name in names}
        return leaves and leaves_otherwise

    def run(self, statement: ast.stmt) -> None:
        """Run a statement of any kind but a branch."""
        match statement:
            case ast.Return(ast.expr() as value):
                self.returned.append(self.value(value))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [added])):
                self.names[name] = self.joined(self.names.get(name) or self.value(added), self.value(added))
            case ast.Expr(ast.Call(ast.Attribute(target, method)) as call) if method in IN_PLACE:
                self.run_in_place(target, call, method.removesuffix("_"))
            case ast.Expr(value):
                self.value(value)
            case ast.Assign([ast.Subscript(ast.Name(name))], value):
                self.write_part(name, self.value(value))
            case ast.AugAssign(ast.Subscript(ast.Name(name)) as target, operator, value):
                self.names[name] = self.operation(operator, target, self.names.get(name), [self.value(value)])
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                super().run(statement)
            case ast.For() | ast.While() | ast.With() | ast.Try():
                self.run_compound(statement)
            case _ if not isinstance(statement, ast.If):
                self.names |= dict.fromkeys(assigned_names(statement))

    def write_part(self, name: str, part: V | None) -> None:
        """Write a part of a tensor, and so of one that it is a part of."""
        for changed in {name, self.views.get(name, name)}:
            self.names[changed] = self.set_part(self.names.get(changed), part)
            self.written.add(changed)

    def run_in_place(self, target: ast.expr, call: ast.Call, function: str) -> None:
        """Run a method that changes a tensor, or a part of one, to what a function of it gives."""
        match target:
            case ast.Name(name) | ast.Subscript(ast.Name(name)) if self.names.get(name) is not None:
                changed = ast.Call(ast.Attribute(target, function), call.args, call.keywords)
                result = self.value(ast.copy_location(changed, call))
                if isinstance(target, ast.Subscript) or name in self.views:
                    self.write_part(name, result)
                else:
                    self.names[name] = result
                self.written.add(name)

    def run_compound(self, statement: ast.stmt) -> None:
        """Run a statement that has others: a loop twice."""
        match statement:
            case ast.For(target, iterated, block, orelse):
                for _ in range(2):
                    self.take_from(target, iterated)
                    self.run_block(block)
                self.run_block(orelse)
            case ast.While(test, block, orelse):
                for _ in range(2):
                    self.value(test)
                    self.run_block(block)
                self.run_block(orelse)
            case ast.With(items, block):
                has_no_gradient = any(_is_without_gradient(item.context_expr) for item in items)
                is_detached = has_no_gradient and not _enables_gradient(block)
                with self.without_gradient() if is_detached else nullcontext():
                    self.run_block(block)
                if is_detached:
                    names = frozenset[str]().union(*map(assigned_names, block))
                    self.names |= {name: self.detached(self.names.get(name)) for name in names}
            case ast.Try(block, _, orelse, final):
                self.run_block([*block, *orelse, *final])

    def set_part(self, value: V | None, part: V | None) -> V | None:
        """A tensor after a part of it has been set."""
        return None

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        """Assign an expression; a record under another name, or some of its rows, is that record."""
        match target, node:
            case ast.Name(name), ast.Name(source) | ast.Subscript(ast.Name(source)) if source in self.records:
                self.records[name] = self.records[source]
        super().assign(target, node)
        match target, node:
            case ast.Name(name), ast.Call(args=[_, *_]) if is_partial(self.body, self.definition, node):
                self.partials[name] = node
            case ast.Name(name), ast.Name(source) | ast.Subscript(ast.Name(source)) if name != source:
                self.views[name] = source

    def set(self, target: ast.expr, value: V | None) -> None:
        """Set the value of a name; what ``functools.partial`` made of its old value is unknown from here on."""
        super().set(target, value)
        changed = assigned_names(ast.Expr(target))
        self.views = {name: source for name, source in self.views.items() if not changed & {name, source}}
        for name in [name for name, partial in self.partials.items() if changed & {name, *_names(partial)}]:
            del self.partials[name]

    def take_from(self, target: ast.expr, iterated: ast.expr) -> None:
        """Set the names of a loop to what it takes from a tensor, or from several at once."""
        match target, iterated:
            case ast.Tuple(targets), ast.Call(ast.Name("zip"), sources) if len(targets) == len(sources):
                pairs = [*zip(targets, sources, strict=True)]
            case ast.Tuple([_, inner]), ast.Call(ast.Name("enumerate"), [source, *_]):
                self.take_from(inner, source)
                return
            case _:
                pairs = [(target, iterated)]
        for name, source in pairs:
            self.set(name, self.of_element(self.value(source)) if isinstance(name, ast.Name) else None)
            if isinstance(name, ast.Name) and isinstance(source, ast.Name):
                self.views[name.id] = source.id

    # -- expressions

    def value(self, node: ast.expr) -> V | None:
        """The value of an expression; of a condition that of either side."""
        match node:
            case ast.IfExp(test, left, right):
                self.value(test)
                return self.joined(self.value(left), self.value(right))
            case ast.Tuple(parts):
                return self.several([self.value(part) for part in parts])
            case ast.GeneratorExp(element, [loop]) | ast.ListComp(element, [loop]):
                self.take_from(loop.target, loop.iter)
                return self.value(element)
            case ast.List(parts) if parts:
                first, *others = map(self.value, parts)
                for other in others:
                    first = self.joined(first, other)
                return first
        return super().value(node)

    def column(self, node: ast.expr) -> V | None:
        """The tensor of a column of an argument, or of a record that the body cut from one."""
        match node:
            case ast.Attribute(ast.Name(name), _) if name in self.records and name not in self.ports:
                inner = self.inner(self.body, self.definition, {name: self.records[name]})
                inner.assigned = frozenset()
                return inner.column(node)
        return super().column(node)

    def call(self, call: ast.Call) -> V | None:
        """The result of a call: also of a method of the role."""
        match call.func:
            case ast.Name(name) if name in self.partials:
                return self.call(_filled(self.partials[name], call))
            case ast.Attribute(ast.Name("self"), name) if name in self.methods and "self" in self.parameters:
                method = self.methods[name]
                return self.evaluated(method.body, method.definition, call, is_method=True)
        return super().call(call)

    def of_call(
        self, call: ast.Call, function: FunctionType, positional: Sequence[V | None], named: Mapping[str, V | None]
    ) -> V | None:
        """The result of a function of the user's."""
        definition = definition_of(function)
        return None if definition is None else self.evaluated(function, definition, call, is_method=False)

    def function_result(self, call: ast.Call) -> V | None:
        """The result of a function that is none of torch, of which a method of an object may be one."""
        return None if callee(self.body, self.definition, call) is None else super().function_result(call)

    def evaluated(
        self, function: Callable[..., Any], definition: Function, call: ast.Call, *, is_method: bool
    ) -> V | None:
        """The value that a function returns for the arguments of a call."""
        if self.depth == DEPTH or not self.is_whole or any(isinstance(arg, ast.Starred) for arg in call.args):
            return None
        self.followed.append(definition.name)
        parameters = [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)][is_method:]
        arguments = dict(zip(parameters, call.args, strict=False))
        arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        ports: dict[str, PortType] = {
            name: self.records[value.id]
            for name, value in arguments.items()
            if isinstance(value, ast.Name) and value.id in self.records
        }
        decorators = [node.func if isinstance(node, ast.Call) else node for node in definition.decorator_list]
        is_detached = any(last_name(node) in NO_GRADIENT for node in decorators) and not _enables_gradient([definition])
        with self.without_gradient() if is_detached else nullcontext():
            inner = self.inner(function, definition, ports)
            inner.give(inner, dict(_defaults(definition)))
            self.give(inner, arguments)
            result = inner.completed().result()
        for name, argument in arguments.items():
            if name in inner.written and isinstance(argument, ast.Name):
                self.names[argument.id] = self.joined(self.names.get(argument.id), inner.names.get(name))
        return self.detached(result) if is_detached else result


def _names(code: ast.AST) -> set[str]:
    """The names in an expression."""
    return {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}


def _filled(partial: ast.Call, call: ast.Call) -> ast.Call:
    """The call of a function that ``functools.partial`` has given some arguments, with all of them."""
    function, *arguments = partial.args
    given = {keyword.arg for keyword in call.keywords}
    kept = [keyword for keyword in partial.keywords if keyword.arg not in given]
    return ast.copy_location(ast.Call(function, [*arguments, *call.args], [*kept, *call.keywords]), call)


def _is_without_gradient(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and last_name(expression.func) in NO_GRADIENT


def _enables_gradient(block: Sequence[ast.stmt]) -> bool:
    """Whether something in a block may compute with gradients although the block does not."""
    return any(last_name(node) in GRADIENT for statement in block for node in ast.walk(statement))


def _defaults(definition: Function) -> Iterator[tuple[str, ast.expr]]:
    """The parameters of a function that have a default, each with it."""
    positional = (*definition.args.posonlyargs, *definition.args.args)
    with_default = positional[len(positional) - len(definition.args.defaults) :]
    yield from zip((argument.arg for argument in with_default), definition.args.defaults, strict=True)
    for argument, default in zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default
