"""Scopes of functions that are interpreted: which names are their own, and which function a call in them runs.

A worked example, a method of a role::

    def update(self, experience):
        clipped = lambda x: x.clamp(0.8, 1.2)              a closure
        weigh = partial(weighted, power=2)                 the function of a module, with an argument
        bound = BOUNDS[self.kind]                          one of the functions in a table of the module
        pair = ids, mask                                   several arguments of a call, as in self.score(*pair)
        loss = self.loss                                   an object that the constructor of the role makes
        ratio = self.ratio(experience)                     runs a method of the role
        return loss(weigh(clipped(ratio)), experience)     runs these

A name that the function sets in another way stands for none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeVar

from hfdsl.check.bodies.calls import local_function
from hfdsl.check.bodies.names import local_names, parameter_names
from hfdsl.check.bodies.objects import (
    NO_CHOICE,
    CalledFunction,
    FunctionChoice,
    KnownObject,
    choice_of,
    class_of_call,
    is_followed,
)
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.bodies.syntax import assigned_names, is_partial, resolved
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import nodes_of

T = TypeVar("T")


class Bindings(NamedTuple):
    """Functions and objects that names are bound to, besides values.

    By name: the calls of ``functools.partial`` that it is assigned, the functions and lambdas that the function
    defines, the objects whose class is known, the functions of a table of which it is one, and the tuples.
    """

    partials: dict[str, ast.Call]
    closures: dict[str, Function]
    objects: dict[str, KnownObject | CalledFunction]
    choices: dict[str, FunctionChoice]
    tuples: dict[str, ast.Tuple]

    def copied(self) -> Bindings:
        """A copy, to be changed separately."""
        partials, closures, objects, choices, tuples = self
        return Bindings(dict(partials), dict(closures), dict(objects), dict(choices), dict(tuples))

    def intersect(self, other: Bindings) -> None:
        """Keep what names are bound to in both of two branches."""
        kinds: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = tuple(zip(self, other, strict=True))
        for bound, bound_otherwise in kinds:
            for name in [name for name, value in bound.items() if bound_otherwise.get(name) != value]:
                del bound[name]

    def take(self, outer: Bindings, own: AbstractSet[str]) -> None:
        """Take the bindings of the function around this one, except those of its own names."""
        self.partials.update(without(outer.partials, own))
        self.closures.update(without(outer.closures, own))
        self.objects.update(without(outer.objects, own))
        self.choices.update(without(outer.choices, own))
        self.tuples.update(without(outer.tuples, own))


class FunctionScope:
    """The scope of a function.

    ``methods`` are those of the ``role``, whose objects are followed if it is known. ``owner`` is the object whose
    method the function is, and ``depth`` the number of calls that led to it.
    """

    def __init__(self, body: Callable[..., Any], definition: Function) -> None:
        self.body, self.definition = body, definition
        self.parameters, self.assigned = frozenset(parameter_names(definition)), assigned_names(definition)
        self.bindings = Bindings({}, {}, {}, {}, {})
        self.methods: Mapping[str, ReadFunction] = {}
        self.role: type | None = None
        self.owner: KnownObject | None = None
        self.depth = 0

    @property
    def receiver(self) -> str:
        """The path that the role has for the object whose method the function is."""
        return "self" if self.owner is None else self.owner.path

    def sets(self, name: str) -> bool:
        """Whether a name is one of the function's own."""
        return name in self.parameters or name in self.assigned

    def enter(self, owner: KnownObject, name: str) -> None:
        """Begin a method of an object, which has a name there."""
        self.owner = self.bindings.objects[name] = owner

    def give(self, inner: FunctionScope, arguments: Mapping[str, ast.expr]) -> None:
        """Give the scope of a function the objects among its arguments."""
        objects = ((name, self.object_of(value)) for name, value in arguments.items())
        inner.bindings.objects.update({name: known for name, known in objects if known is not None})
        choices = ((name, self.choice(value)) for name, value in arguments.items())
        inner.bindings.choices.update({name: choice for name, choice in choices if choice.functions})

    def enclose(self, inner: FunctionScope) -> None:
        """Give the scope of a function that this one defines the names of this one, as they are now."""
        own, inner.owner = local_names(inner.definition), self.owner
        inner.parameters |= self.parameters - own
        inner.assigned |= self.assigned - own
        inner.bindings.take(self.bindings, own)

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        """Bind a name to what an expression gives, or several to the parts of a tuple."""
        match target, node:
            case ast.Name(name), _:
                self.bind(name, node)
            case ast.Tuple(targets), ast.Tuple(parts) if len(targets) == len(parts):
                pairs = zip(targets, parts, strict=True) if _names(target).isdisjoint(_names(node)) else ()
                for inner, part in pairs:
                    self.assign(inner, part)

    def bind(self, name: str, node: ast.expr) -> None:
        """Bind a name to what an expression gives, if it is a function or an object that is known."""
        match node:
            case ast.Call(args=[_, *_]) if is_partial(self.body, self.definition, node):
                self.bindings.partials[name] = node
            case ast.Lambda():
                self.define(name, node)
            case ast.Tuple() if name not in _names(node):
                self.bindings.tuples[name] = node
        known, choice = self.object_of(node), self.choice(node)
        if known is not None:
            self.bindings.objects[name] = known
        if choice.functions:
            self.bindings.choices[name] = choice

    def define(self, name: str, node: ast.FunctionDef | ast.Lambda) -> None:
        """Bind a name to a function that this one defines."""
        self.bindings.closures.update(local_function(name, node))

    def unbind(self, names: AbstractSet[str]) -> None:
        """Forget what names were bound to, and what ``functools.partial`` and tuples made of their old values."""
        partials, closures, objects, choices, tuples = self.bindings
        for bound in (partials, tuples):
            for name in [name for name, node in bound.items() if names & {name, *_names(node)}]:
                del bound[name]
        for name in names:
            closures.pop(name, None)
            objects.pop(name, None)
            choices.pop(name, None)

    def unpacked(self, call: ast.Call) -> ast.Call:
        """A call with what a tuple under a star holds as its arguments."""
        if not any(isinstance(argument, ast.Starred) for argument in call.args):
            return call
        arguments = list[ast.expr]()
        for argument in call.args:
            match argument:
                case ast.Starred(ast.Name(name)) if name in self.bindings.tuples:
                    arguments += self.bindings.tuples[name].elts
                case ast.Starred(ast.Tuple(parts) | ast.List(parts)):
                    arguments += parts
                case _:
                    arguments.append(argument)
        return ast.copy_location(ast.Call(call.func, arguments, call.keywords), call)

    def run_by(self, function: ast.expr) -> Sequence[CalledFunction]:
        """The functions of which a call runs one."""
        choice, called = self.choice(function), self.called(function)
        return choice.functions or ([] if called is None else [called])

    def choice(self, node: ast.expr) -> FunctionChoice:
        """The functions of a table of which an expression is one."""
        match node:
            case ast.Name(name):
                return self.bindings.choices.get(name, NO_CHOICE)
            case ast.Attribute(receiver, name) if isinstance(known := self.object_of(receiver), KnownObject):
                return known.choices(name)
        return choice_of(node, self.resolved)

    def called(self, function: ast.expr) -> CalledFunction | None:
        """The function that a call runs, if it is one of the body, of the role, or of an object that is known."""
        owner, closures = self.owner, self.bindings.closures
        is_of_role = "self" in self.parameters and self.receiver == "self"
        match function:
            case ast.Name(name) if name in closures:
                return CalledFunction(self.body, closures[name], owner=owner, is_closure=True)
            case ast.Lambda():
                definitions = [*local_function("lambda", function).values()]
                return CalledFunction(self.body, definitions[0], owner=owner, is_closure=True) if definitions else None
            case ast.Attribute(ast.Name("self"), name) if is_of_role and name in self.methods:
                method = self.methods[name]
                return CalledFunction(method.body, method.definition, is_bound=True, owner=owner)
            case ast.Attribute(ast.Call(ast.Name("super"), []), name) if owner is not None:
                return owner.method(name, after=self.body)
            case ast.Attribute(receiver, name) if isinstance(known := self.object_of(receiver), KnownObject):
                return known.method(name) or _run_by(known.attribute(name))
        return _run_by(self.object_of(function))

    def object_of(self, node: ast.expr) -> KnownObject | CalledFunction | None:
        """The object, or the function that an object keeps, that an expression certainly gives."""
        role = self.role
        if role is None:
            return None
        match node:
            case ast.Name(name) if name in self.bindings.objects:
                return self.bindings.objects[name]
            case ast.Attribute(receiver, name) if isinstance(known := self.object_of(receiver), KnownObject):
                return known.attribute(name)
            case ast.Name() | ast.Attribute(ast.Name()):
                value = self.resolved(node)
                kind = value if isinstance(value, type) else type(value)
                return KnownObject(kind, ast.unparse(node), role, kind is value) if is_followed(kind) else None
            case ast.Call():
                kind_called = class_of_call(node, self.resolved)
                return None if kind_called is None else KnownObject(kind_called, ast.unparse(node.func), role)
        return None

    def resolved(self, node: ast.expr) -> object:
        """The value of a name of the module, or of one in a module that it names."""
        is_own = any(isinstance(part, ast.Name) and self.sets(part.id) for part in nodes_of(node))
        return None if is_own else resolved(self.body, self.definition, node)


def without(values: Mapping[str, T], names: AbstractSet[str]) -> dict[str, T]:
    """The values of all names but some."""
    return {name: value for name, value in values.items() if name not in names}


def _run_by(known: KnownObject | CalledFunction | None) -> CalledFunction | None:
    """The function that a call of an object runs."""
    return known.result_of_call() if isinstance(known, KnownObject) else known


def _names(code: ast.AST) -> set[str]:
    """The names in an expression."""
    return {node.id for node in nodes_of(code) if isinstance(node, ast.Name)}
