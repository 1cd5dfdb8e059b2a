"""Bodies as syntax trees: what a function or method computes on every call.

A check never runs a body. But a statement at its top level runs in every call, so that a number which the first
formula there refuses is refused before launch::

    def advantages(scores: Scores, *, group: int) -> Advantages:
        gains = group_normalized(scores.reward.tensor, group)    runs in every call
        if group > 1:
            gains = gains / gains.std()                          may not run: nothing is said about it
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, Final

from hfdsl.check.bodies.names import imported_names, local_names, parameter_names, value_of
from hfdsl.check.sources import Function, definition_at
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.spans import definition_span

STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
SOMETIMES = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@functools.lru_cache(maxsize=256)
def definition_of(body: Callable[..., Any]) -> Function | None:
    """The ``def`` of a body; None if its file does not have it."""
    return definition_at(definition_span(body))


TRANSPARENT: Final = frozenset(
    {"contextlib", "torch._dynamo.eval_frame", "torch.amp.autocast_mode", "torch.utils._contextlib"}
)
"""Modules whose decorators run a function in a context, and change neither its arguments nor its result."""


def is_decorated(body: Callable[..., Any]) -> bool:
    """Whether a decorator may change what a body gets or returns; ``torch.no_grad()`` changes neither."""
    while (wrapped := getattr(body, "__wrapped__", None)) is not None:
        if getattr(body, "__globals__", {}).get("__name__") not in TRANSPARENT:
            return True
        body = wrapped
    return False


def certain_statements(definition: Function) -> Iterator[ast.stmt]:
    """The simple statements that run in every call, up to the first place where a body may end early."""
    for statement in definition.body:
        if isinstance(statement, STATEMENTS):
            yield statement
        if any(isinstance(node, (ast.Return, ast.Raise)) for node in nodes_of(statement)):
            return


def certain_expressions(statement: ast.AST) -> Iterator[ast.expr]:
    """The expressions of a statement that are evaluated whenever it runs."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr):
            yield child
        if not isinstance(child, SOMETIMES):
            yield from certain_expressions(child)


@functools.lru_cache(maxsize=4096)
def assigned_names(code: ast.stmt | ast.expr) -> frozenset[str]:
    """The names that a body, statement or target sets: parameters among them may not have the caller's value."""
    stores = (node for node in nodes_of(code) if isinstance(node, ast.Name))
    return frozenset(name.id for name in stores if not isinstance(name.ctx, ast.Load))


@functools.lru_cache(maxsize=256)
def columns_read(body: Callable[..., Any]) -> Mapping[str, frozenset[str]]:
    """By parameter the columns that a body reads, where it does nothing else with the record.

    A body without a statement that returns something is no body yet.
    """
    definition = None if is_decorated(body) else definition_of(body)
    if definition is None or not any(isinstance(node, ast.Return) for node in nodes_of(definition)):
        return {}
    names, attributes = Counter[str](), dict[str, list[str]]()
    for node in nodes_of(definition):
        match node:
            case ast.Name(name):
                names[name] += 1
            case ast.Attribute(ast.Name(name), column):
                attributes.setdefault(name, []).append(column)
    read = {name: attributes.get(name, []) for name in parameter_names(definition)}
    return {name: frozenset(columns) for name, columns in read.items() if names[name] == len(columns)}


def callee(body: Callable[..., Any], definition: Function, call: ast.Call) -> FunctionType | None:
    """The function that a body calls by a name of its module, or by one that it imports of hfdsl itself."""
    value = resolved(body, definition, call.func)
    return value if isinstance(value, FunctionType) else None


def resolved(body: Callable[..., Any], definition: Function, node: ast.expr) -> object:
    """The value of a name of a body's module, or of one in a module that it names; None for anything else."""
    match node:
        case ast.Name(name):
            return _resolve_name(body, definition, name)
        case ast.Attribute(ast.Name() as owner, attribute):
            module = resolved(body, definition, owner)
            return getattr(module, attribute, None) if isinstance(module, ModuleType) else None
    return None


def is_partial(body: Callable[..., Any], definition: Function, call: ast.Call) -> bool:
    """Whether a call is that of ``functools.partial``."""
    match call.func:
        case ast.Name(name):
            return _resolve_name(body, definition, name) is functools.partial
        case ast.Attribute(ast.Name(name), "partial"):
            return _resolve_name(body, definition, name) is functools
    return False


def _resolve_name(body: Callable[..., Any], definition: Function, name: str) -> object:
    imported = imported_names(definition).get(name, "")
    if imported.partition(".")[0] == "hfdsl":
        return _imported_value(imported)
    return None if name in local_names(definition) else value_of(body, name)


LOADS_TORCH: Final = "hfdsl.rl.models"
"""The package whose modules import torch, which takes seconds; it has no formulas."""


def _imported_value(full_name: str) -> object:
    if full_name.startswith(LOADS_TORCH):
        return None
    module, _, name = full_name.rpartition(".")
    try:
        return getattr(import_module(module or full_name), name, None) or import_module(full_name)
    except ImportError:
        return None
