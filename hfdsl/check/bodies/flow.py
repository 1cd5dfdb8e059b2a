"""Abstract interpretation along the flow of a body: through branches, loops, tables, and users' functions.

``Interpretation`` keeps to what runs in every call. A mistake in a formula is one in any branch, so that a flow follows
all of them, with what names are where branches meet again::

    gains = experience.advantage.tensor
    if self.clip:
        loss = self.clipped(gains)          followed into the method of the role
    else:
        loss = gains.mean()
    for _ in range(2):                      followed twice: the second pass has the names of the first
        loss = loss + self.penalty()
    loss.backward()                         of either loss, which the rule joins

``scopes.py`` says which function a call runs, and ``tables.py`` what dictionaries are.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from types import FunctionType
from typing import Any, Self, TypeVar

from hfdsl.check.bodies import tables
from hfdsl.check.bodies.calls import defaults, enables_gradient, filled, is_without_gradient
from hfdsl.check.bodies.interpretation import Interpretation, RowGroups, ports_of
from hfdsl.check.bodies.names import local_names
from hfdsl.check.bodies.objects import CalledFunction, KeptValue, KnownObject
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.bodies.scopes import without
from hfdsl.check.bodies.specialized import Option, literal_arguments, specialized
from hfdsl.check.bodies.syntax import assigned_names, callee, definition_of
from hfdsl.check.sources import Function
from hfdsl.graph.signatures import PortType, RecordType, Signature, is_of_hfdsl

V = TypeVar("V")

DEPTH = 4
"""How deep calls of functions within functions are followed."""

MOST_CALLS = 200
"""How many calls of functions are followed in a body at most."""

IN_PLACE = functions(
    "add_ clamp_ clamp_max_ clamp_min_ clip_ div_ exp_ fill_ index_fill_ log_ logical_and_ masked_fill_ mul_ neg_ pow_ "
    "scatter_ sub_ zero_"
)
"""Methods that change a tensor to what the function without the underscore gives."""

ENDS = (ast.Break, ast.Continue, ast.Raise, ast.Return)
"""Statements after which a block is left."""


class FlowInterpretation(Interpretation[V]):
    """The interpretation of all statements of a body, and of what it calls; ``methods`` are those of its role."""

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
        self.scope.methods, self.scope.depth = methods or {}, depth
        self.records = {name: kind for name, kind in ports.items() if isinstance(kind, RecordType)}
        self.returned, self.followed = list[V | None](), list[str]()
        self.views = dict[str, str]()  # by name of a part or an element of a tensor the name of that
        self.zipped: Mapping[str, Sequence[V | None]] = {}  # by name of a list of tuples the values that these have
        self.written = set[str]()  # names of tensors of which something has been changed in place
        self.literals: Mapping[str, Option] = {}  # parameters whose values a call says
        self.begin()

    def begin(self) -> None:
        """Begin what a subclass keeps besides."""

    @classmethod
    def of_method(
        cls,
        signature: Signature,
        function: ReadFunction,
        methods: Mapping[str, ReadFunction],
        role: type | None = None,
        given: tuple[tuple[str, KeptValue], ...] = (),
    ) -> Self:
        """The interpretation of the method of a role that a dataflow calls; with the role, also in its objects."""
        body = cls(function.body, function.definition, RowGroups.of(signature), ports_of(signature), methods)
        body.scope.role = role
        if role is not None:
            body.enter(KnownObject(role, "self", role, given=given), "self")
        return body

    # -- the values of a rule

    def joined(self, left: V | None, right: V | None) -> V | None:
        """The join of two values: that of a name that is one of them."""
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

    def set_part(self, value: V | None, part: V | None) -> V | None:
        """A tensor after a part of it has been set."""
        return None

    def table(self, entries: Mapping[str, V | None]) -> V | None:
        """The value of a table."""
        return None

    def entries(self, value: V | None) -> Mapping[str, V | None] | None:
        """The entries of a table by key; None of another value."""
        return None

    # -- statements

    def completed(self) -> Self:
        """The interpretation after all statements."""
        self.run_block(self.definition.body)
        return self

    def result(self) -> V | None:
        """The value that the body returns."""
        return reduce(self.joined, self.returned) if self.returned else None

    def run_block(self, block: Sequence[ast.stmt]) -> bool:
        """Run statements in order; return whether the block is left before its end."""
        for statement in block:
            if not self.runs_on_table(statement):
                self.run(statement)
            if isinstance(statement, ENDS):
                return True
            if isinstance(statement, ast.If) and self.branch(statement):
                return True
        return False

    def runs_on_table(self, statement: ast.stmt) -> bool:
        """Run a statement if it changes a table; return whether it does."""
        return tables.runs_on_table(self, statement)

    def branch(self, statement: ast.If) -> bool:
        """Run both branches; return whether both leave the block."""
        self.value(statement.test)
        before, bound_before = dict(self.names), self.scope.bindings.copied()
        leaves = self.run_block(statement.body)
        after, self.names = self.names, before
        bound_after, self.scope.bindings = self.scope.bindings, bound_before
        leaves_otherwise = self.run_block(statement.orelse)
        if leaves_otherwise:
            self.names, self.scope.bindings = after, bound_after
        elif not leaves:
            names = after.keys() | self.names.keys()
            self.names = {name: self.joined(after.get(name), self.names.get(name)) for name in names}
            self.scope.bindings.intersect(bound_after)
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
            case ast.FunctionDef(name):
                self.set(ast.Name(name, ast.Store()), None)
                self.scope.define(name, statement)
            case _ if not isinstance(statement, ast.If):
                for name in assigned_names(statement):
                    self.set(ast.Name(name, ast.Store()), None)

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
                contexts = [item.context_expr for item in items]
                has_no_gradient = any(isinstance(c, ast.Call) and is_without_gradient(c) for c in contexts)
                is_detached = has_no_gradient and not enables_gradient(block)
                with self.without_gradient() if is_detached else nullcontext():
                    self.run_block(block)
                if is_detached:
                    names = frozenset[str]().union(*map(assigned_names, block))
                    self.names |= {name: self.detached(self.names.get(name)) for name in names}
            case ast.Try(block, _, orelse, final):
                self.run_block([*block, *orelse, *final])

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        """Assign an expression; a record under another name, or some of its rows, is that record."""
        match target, node:
            case ast.Name(name), ast.Name(source) | ast.Subscript(ast.Name(source)) if source in self.records:
                self.records[name] = self.records[source]
        super().assign(target, node)
        match target, node:
            case ast.Name(name), ast.Name(source) | ast.Subscript(ast.Name(source)) if name != source:
                self.views[name] = source
        self.scope.assign(target, node)
        match target, node:
            case ast.Name(name), ast.Call(ast.Name("list" | "tuple"), [ast.Call(ast.Name("zip"), sources)]):
                self.zipped = {**self.zipped, name: [self.of_element(self.value(source)) for source in sources]}

    def set(self, target: ast.expr, value: V | None) -> None:
        """Set the value of a name, which stands for nothing else from here on."""
        super().set(target, value)
        changed = assigned_names(target)
        self.views = {name: source for name, source in self.views.items() if not changed & {name, source}}
        self.zipped = without(self.zipped, changed)
        self.scope.unbind(changed)

    def take_from(self, target: ast.expr, iterated: ast.expr) -> None:
        """Set the names of a loop to what it takes from a tensor, or from several at once."""
        match target, iterated:
            case ast.Tuple(targets), ast.Call(ast.Name("zip"), sources) if len(targets) == len(sources):
                pairs = [*zip(targets, sources, strict=True)]
            case ast.Tuple([_, inner]), ast.Call(ast.Name("enumerate"), [source, *_]):
                self.take_from(inner, source)
                return
            case ast.Tuple(), ast.Call(ast.Name("list" | "tuple"), [source]):
                self.take_from(target, source)
                return
            case ast.Tuple(targets), ast.Name(listed) if len(targets) == len(self.zipped.get(listed, ())):
                for part, value in zip(targets, self.zipped[listed], strict=True):
                    self.set(part, value)
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
                return reduce(self.joined, [self.value(part) for part in parts])
            case ast.Dict() | ast.DictComp():
                return tables.written_table(self, node)
            case ast.Subscript(owner, ast.Constant(str(key))):
                entries = self.entries(self.value(owner))
                return None if entries is None else entries.get(key)
            case ast.BinOp(left, ast.BitOr(), right) if (table := tables.merged_table(self, left, right)) is not None:
                return table
        return super().value(node)

    def record(self, name: str) -> RecordType | None:
        """The type of the record that a name stands for: also of one that the body cut from an argument."""
        return self.records[name] if name in self.records and name not in self.ports else super().record(name)

    # -- calls

    def call(self, call: ast.Call) -> V | None:
        """The result of a call: also of a method of the role, or of an object whose class is known."""
        call = self.scope.unpacked(call)
        if (of_table := tables.result_of_call(self, call)) is not None:
            return of_table.value
        partials, closures = self.scope.bindings.partials, self.scope.bindings.closures
        match call.func, call.args:
            case ast.Name(name), _ if name in partials:
                return self.call(filled(partials[name], call))
            case ast.Attribute(_, "step"), [ast.Name(name)] if name in closures:
                self.call(ast.copy_location(ast.Call(call.args[0], [], []), call))
        called = self.scope.run_by(call.func)
        results = [self.evaluated(function, call) for function in called]
        result = reduce(self.joined, results) if results else None
        if not called and callee(self.body, self.definition, call) is None:
            tables.forget_taken(self, call)
        is_own = any(function.owner is self.scope.owner for function in called)
        return result if result is not None or is_own else super().call(call)

    def of_call(
        self, call: ast.Call, function: FunctionType, positional: Sequence[V | None], named: Mapping[str, V | None]
    ) -> V | None:
        """The result of a function, a user's by its definition."""
        if is_of_hfdsl(function):
            return self.of_formula(call, function, positional, named)
        return self.of_definition(call, function)

    def of_formula(
        self, call: ast.Call, formula: FunctionType, positional: Sequence[V | None], named: Mapping[str, V | None]
    ) -> V | None:
        """The result of a formula of hfdsl: by its definition, unless a rule knows better."""
        return self.of_definition(call, formula)

    def of_definition(self, call: ast.Call, function: FunctionType) -> V | None:
        """The value that the definition of a function returns."""
        definition = definition_of(function)
        if definition is None:
            tables.forget_taken(self, call)
            return None
        return self.evaluated(CalledFunction(function, definition), call)

    def function_result(self, call: ast.Call) -> V | None:
        """The result of a function that is none of torch, of which a method of an object may be one."""
        function = callee(self.body, self.definition, call)
        is_local = isinstance(call.func, ast.Name) and self.scope.sets(call.func.id)
        return None if function is None or is_local else super().function_result(call)

    def evaluated(self, called: CalledFunction, call: ast.Call) -> V | None:
        """The value that a function returns for the arguments of a call."""
        if self.scope.depth == DEPTH or not self.is_whole or any(isinstance(arg, ast.Starred) for arg in call.args):
            tables.forget_taken(self, call)
            return None
        self.followed.append(called.definition.name)
        parameters, arguments = called.parameters, called.arguments(call)
        ports: dict[str, PortType] = {
            name: self.records[value.id]
            for name, value in arguments.items()
            if isinstance(value, ast.Name) and value.id in self.records
        }
        is_detached = called.is_without_gradient
        with self.without_gradient() if is_detached else nullcontext():
            inner = self.inner(called.body, called.definition, ports)
            if called.is_closure:
                self.enclose(inner)
            elif called.owner is not None and parameters:
                inner.enter(called.owner, parameters[0])
            inner.give(inner, dict(defaults(called.definition)))
            self.give(inner, arguments)
            inner.names |= {name: value for name, value in tables.unpacked(self, call).items() if name in parameters}
            outer = without(self.literals, self.assigned)
            inner.literals = literal_arguments(called.definition, call, arguments, outer)
            known = frozenset(name for name in arguments if inner.names.get(name) is not None)
            inner.definition = specialized(called.definition, {}, known, inner.literals)
            result = inner.completed().result()
        if called.is_closure:
            self.take_changes(inner)
        for name, argument in arguments.items():
            if name in inner.written and isinstance(argument, ast.Name):
                self.names[argument.id] = self.joined(self.names.get(argument.id), inner.names.get(name))
        return self.detached(result) if is_detached else result

    @property
    def is_whole(self) -> bool:
        """Whether all calls of functions could be followed."""
        return len(self.followed) < MOST_CALLS

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls."""
        inner = type(self)(body, definition, self.group, ports, self.scope.methods, self.scope.depth + 1)
        inner.followed, inner.scope.role = self.followed, self.scope.role
        return inner

    def enter(self, owner: KnownObject, name: str) -> None:
        """Begin a method of an object, which has a name there."""
        self.scope.enter(owner, name)

    def give(self, inner: FlowInterpretation[V], arguments: Mapping[str, ast.expr]) -> None:
        """Give the interpretation of a function its arguments, as this body writes them."""
        inner.names |= {name: self.value(value) for name, value in arguments.items()}
        self.scope.give(inner.scope, arguments)

    def enclose(self, inner: FlowInterpretation[V]) -> None:
        """Give the interpretation of a function that the body defines the names of the body, as they are now."""
        self.scope.enclose(inner.scope)
        own = local_names(inner.definition)
        inner.names |= without(self.names, own)
        inner.records |= without(self.records, own)
        inner.ports = {**inner.ports, **without(self.ports, own)}

    def take_changes(self, inner: FlowInterpretation[V]) -> None:
        """Take what a function of the body did to what names of the body stand for, such as a list of losses."""
        names = self.names.keys() & inner.names.keys() - local_names(inner.definition)
        self.names |= {name: inner.names[name] for name in names if self.names[name] != inner.names[name]}
