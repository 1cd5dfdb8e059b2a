"""Kept attributes: what the methods of a class change in ``self`` from call to call, such as a running mean.

A worked example::

    def score(self, rollout):
        self.mean = 0.9 * self.mean + 0.1 * raw.mean()     a change: the new value is made of the old one
        self.seen += len(raw)                              a change, which only counts if something reads it
        self.scale = raw.std()                             no change: the old value has no part in it
        self.answers[key] = answer                         a cache, perhaps: nothing is said of entries
        return raw - self.mean

A value that a call sets without the old one, or fills when it is first needed, is not kept from one step to the next.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Final

from hfdsl.check.bodies.names import value_of
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.protocols.worker import Worker

GROWS: Final = frozenset({"add", "append", "appendleft", "extend", "insert"})
"""Methods by which a list, set or deque gets more."""

COLLECTIONS: Final = frozenset({"Counter", "defaultdict", "deque", "list", "set"})
"""The functions that make one."""

IN_PLACE: Final = frozenset({"add_", "addcdiv_", "addcmul_", "div_", "lerp_", "mul_", "sub_"})
"""Methods of a tensor that make its new values of the old ones."""

COMBINES: Final = frozenset({"add", "cat", "concat", "lerp", "max", "maximum", "min", "minimum", "sum"})
"""Functions that make a new value of an old one and others."""

RESETS: Final = frozenset({"clear", "copy_", "fill_", "load_state_dict", "zero_"})
"""Methods after which nothing is left of an old value."""

LOGS: Final = frozenset({"debug", "info", "log", "print", "warning", "write"})
"""Functions that print or log a value."""

CLOCKS: Final = frozenset({"monotonic", "perf_counter", "time"})
"""Functions of a clock: sums of seconds are for logs, too."""


@dataclass(frozen=True, slots=True)
class KeptChange:
    """A place where a method changes an attribute of ``self``, and its function."""

    attribute: str
    place: ast.expr
    function: ReadFunction


@lru_cache(maxsize=256)
def methods_of(kind: type) -> Mapping[str, ReadFunction]:
    """The methods of a class and its bases that can be read."""
    methods = dict[str, ReadFunction]()
    for base in kind.__mro__:
        for name, member in vars(base).items() if base not in (object, Worker) else ():
            definition = definition_of(member) if isinstance(member, FunctionType) else None
            if definition is not None:
                methods.setdefault(name, ReadFunction(member, definition))
    return methods


def reached(methods: Mapping[str, ReadFunction], names: Iterable[str]) -> list[ReadFunction]:
    """Methods, and those that they call by ``self``."""
    waiting, reached_methods = [*names], dict[str, ReadFunction]()
    while waiting:
        name = waiting.pop()
        if name in methods and name not in reached_methods:
            reached_methods[name] = methods[name]
            waiting += mentioned(methods[name].definition)
    return [*reached_methods.values()]


def overridden(kind: type, method: ReadFunction) -> list[ReadFunction] | None:
    """The methods of bases that a method calls by ``super()`` or by a class; None if one of them cannot be read."""
    name, read = method.definition.name, list[ReadFunction]()
    named = (node for node in nodes_of(method.definition) if isinstance(node, ast.Attribute) and node.attr == name)
    if all(map(_own, named)):
        return []
    for base in kind.__mro__:
        member = vars(base).get(name)
        if member is None or member is method.body or base in (object, Worker):
            continue
        definition = definition_of(member) if isinstance(member, FunctionType) else None
        if definition is None:
            return None
        read.append(ReadFunction(member, definition))
    return read


def mentioned(code: ast.AST) -> list[str]:
    """The attributes of ``self`` that code mentions."""
    return [node.attr for node in nodes_of(code) if isinstance(node, ast.Attribute) and _own(node)]


def kept_changes(kind: type, called: Sequence[str], *, depth: int = 1) -> Iterator[KeptChange]:
    """The changes of attributes that the called methods of a class keep from one call to the next, each once."""
    methods = methods_of(kind)
    running = [method for name, method in methods.items() if name not in ("__init__", "state", "load_state")]
    built = _constructed(methods)
    changes = dict[str, KeptChange]()
    for method in reached(methods, called):
        if method.definition.name == "__init__" or method.module.partition(".")[0] == "hfdsl":
            continue
        for attribute, place in _changes(method, built, depth):
            changes.setdefault(attribute, KeptChange(attribute, place, method))
    for attribute, change in changes.items():
        if not any(_resets(method.definition, attribute) for method in running) and (
            _learns(built.get(attribute)) or any(_reads(method.definition, attribute) for method in running)
        ):
            yield change


def _own(node: ast.AST) -> bool:
    """Whether a node is an attribute of ``self``."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _attribute(node: ast.expr) -> str:
    """The attribute of ``self`` that an expression is a part of: ``mean`` of ``self.mean[0].data``; or nothing."""
    while not _own(node):
        match node:
            case ast.Attribute(value) | ast.Subscript(value) | ast.Call(ast.Attribute(value)):
                node = value
            case _:
                return ""
    return node.attr if isinstance(node, ast.Attribute) else ""


@dataclass(frozen=True, slots=True)
class _Built:
    """The value that a constructor gives an attribute: its expression, the name of what makes it, and that itself."""

    value: ast.expr
    path: str
    maker: object


def _learns(built: _Built | None) -> bool:
    """Whether an attribute is an optimizer or a schedule of torch, which needs no reader; plain SGD keeps nothing."""
    if built is None or not built.path.startswith("torch.optim.") or not isinstance(built.value, ast.Call):
        return False
    has_momentum = any(keyword.arg in ("momentum", None) for keyword in built.value.keywords)
    return has_momentum or not built.path.endswith(".SGD")


def _constructed(methods: Mapping[str, ReadFunction]) -> dict[str, _Built]:
    """The values of attributes as constructors make them."""
    built = dict[str, _Built]()
    for method in reached(methods, ["__init__"]):
        for node in nodes_of(method.definition):
            match node:
                case ast.Assign([ast.Attribute(ast.Name("self"), name)], value) | ast.AnnAssign(
                    ast.Attribute(ast.Name("self"), name), _, ast.expr() as value
                ):
                    call = value.func if isinstance(value, ast.Call) else None
                    maker = value_of(method.body, call.id) if isinstance(call, ast.Name) else None
                    built.setdefault(name, _Built(value, method.path(call) if call is not None else "", maker))
    return built


def _changes(method: ReadFunction, built: Mapping[str, _Built], depth: int) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that a method makes of their old values, and where."""
    parts = _loop_variables(method.definition)
    for node in nodes_of(method.definition):
        match node:
            case ast.AugAssign(target, _, value) if (name := _attribute(target)) and not _is_clock(value):
                yield name, target
            case ast.Assign([ast.Attribute(ast.Name("self"), name) as target], value) if _combines(value, name):
                yield name, target
            case ast.Call(ast.Attribute(owner, function)):
                name = _attribute(owner) or (parts.get(_root(owner), "") if function in IN_PLACE else "")
                if name and _is_changed_by(function, owner, built.get(name), depth):
                    yield name, node
                if function == "step" and name in built and built[name].path.startswith("torch.optim."):
                    yield from ((part, node) for part in mentioned(built[name].value))


def _is_changed_by(function: str, owner: ast.expr, built: _Built | None, depth: int) -> bool:
    """Whether the method of a value that an attribute holds changes it."""
    if function in IN_PLACE:
        return True
    if built is None or not _own(owner):
        return False
    if function in GROWS and _is_collection(built):
        return True
    if function == "step" and _learns(built):
        return True
    kind = built.maker
    is_users = isinstance(kind, type) and not any(base.__module__.startswith("torch.") for base in kind.__mro__)
    return is_users and depth > 0 and any(kept_changes(kind, [function], depth=depth - 1))  # type: ignore[arg-type]


def _is_collection(built: _Built) -> bool:
    return isinstance(built.value, (ast.List, ast.ListComp, ast.Set)) or built.path.rpartition(".")[2] in COLLECTIONS


def _is_clock(value: ast.expr) -> bool:
    calls = (node.func for node in nodes_of(value) if isinstance(node, ast.Call))
    return any(isinstance(call, (ast.Name, ast.Attribute)) and _last(call) in CLOCKS for call in calls)


def _last(expression: ast.expr) -> str:
    match expression:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""


def _root(expression: ast.expr) -> str:
    """The variable that an expression is a part of."""
    while True:
        match expression:
            case ast.Attribute(value) | ast.Subscript(value) | ast.Call(ast.Attribute(value)):
                expression = value
            case _:
                return expression.id if isinstance(expression, ast.Name) else ""


def _combines(value: ast.expr, name: str) -> bool:
    """Whether an expression computes a new value of an attribute from the old one."""
    for node in nodes_of(value):
        match node:
            case ast.BinOp():
                operands = [node.left, node.right]
            case ast.Call(function, arguments) if _last(function) in COMBINES:
                operands = [*arguments, function]
            case _:
                continue
        if any(name in mentioned(operand) for operand in operands):
            return True
    return False


def _loop_variables(definition: ast.AST) -> dict[str, str]:
    """By variable of a loop over the parameters of an attribute that attribute."""
    variables = dict[str, str]()
    for node in nodes_of(definition):
        match node:
            case ast.For(ast.Tuple(targets), ast.Call(ast.Name("zip"), iterated)):
                pairs = [*zip(targets, iterated, strict=False)]
            case ast.For(ast.expr() as target, iterated_once):
                pairs = [(target, iterated_once)]
            case _:
                continue
        for target, iterable in pairs:
            if isinstance(target, ast.Name) and _attribute(iterable):
                variables[target.id] = _attribute(iterable)
    return variables


def _resets(definition: ast.AST, attribute: str) -> bool:
    """Whether a method sets an attribute to a value of its own, unless it tests whether there is one."""

    def resets(code: ast.AST) -> bool:
        match code:
            case ast.If(test) if attribute in mentioned(test):
                return False
            case ast.Assign(targets, value):
                stored = (node for target in targets for node in nodes_of(target) if _is_stored(node))
                return any(name == attribute for node in stored for name in mentioned(node)[:1]) and (
                    attribute not in mentioned(value)
                )
            case ast.Call(ast.Attribute(owner, function)) if function in RESETS and _attribute(owner) == attribute:
                return True
        return any(map(resets, ast.iter_child_nodes(code)))

    return resets(definition)


def _is_stored(node: ast.AST) -> bool:
    """Whether a node is an attribute of ``self`` that is set."""
    return isinstance(node, ast.Attribute) and _own(node) and isinstance(node.ctx, ast.Store)


def _reads(definition: ast.AST, attribute: str) -> bool:
    """Whether a method reads an attribute, other than to change, test or log it."""

    def reads(code: ast.AST) -> bool:
        match code:
            case ast.AugAssign(target, _, value) if _attribute(target) == attribute:
                return reads(value)
            case ast.Assign([ast.Attribute(ast.Name("self"), name)]) if name == attribute:
                return False
            case ast.Expr(ast.Call(function)) if _last(function) in LOGS | GROWS | IN_PLACE:
                return False
            case ast.If(test, body, rest) if attribute in mentioned(test):
                return _acts(body) or any(map(reads, [*body, *rest]))
        if _own(code) and isinstance(code, ast.Attribute) and code.attr == attribute:
            return isinstance(code.ctx, ast.Load)
        return any(map(reads, ast.iter_child_nodes(code)))

    def _acts(body: Sequence[ast.stmt]) -> bool:
        """Whether a branch does more than set the attribute or log something."""
        return not all(
            (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Call)
                and _last(statement.value.func) in LOGS
            )
            or (isinstance(statement, ast.Assign) and attribute in mentioned(statement))
            for statement in body
        )

    return reads(definition)
