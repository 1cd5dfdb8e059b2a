"""Names of a function: those that it sets or imports itself, and what the others stand for.

A worked example::

    def score(self, rollout):
        from torch.nn import functional as F      an imported name: torch.nn.functional
        mean = F.normalize(rollout.values)        a local name
        return scale(mean)                        a name of the module, or of the function around it
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Mapping
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import nodes_of

MISSING: Final = object()
"""The value of a name that has none."""


def parameter_names(definition: Function) -> tuple[str, ...]:
    """The names of the parameters of a function."""
    return tuple(node.arg for node in nodes_of(definition.args) if isinstance(node, ast.arg))


@lru_cache(maxsize=1024)
def local_names(definition: Function) -> frozenset[str]:
    """The names that a function, or one within it, sets itself."""
    names = set[str]()
    for node in nodes_of(definition):
        match node:
            case ast.Name(name, ast.Store() | ast.Del()) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.Import(aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    return frozenset(names - {definition.name})


@lru_cache(maxsize=1024)
def imported_names(definition: Function) -> Mapping[str, str]:
    """The full name of each name that a function imports."""
    full_names = dict[str, str]()
    for node in nodes_of(definition):
        match node:
            case ast.Import(aliases):
                full_names |= {alias.asname: alias.name for alias in aliases if alias.asname}
            case ast.ImportFrom(str(module), aliases, 0):
                full_names |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
    return full_names


def value_of(function: Any, name: str) -> object:
    """The value of a name that a function does not set; ``MISSING`` if it has none."""
    function = inspect.unwrap(function) if callable(function) else function  # names are those of its ``def``
    code = getattr(function, "__code__", None)
    enclosed = dict(zip(code.co_freevars, function.__closure__ or (), strict=False)) if code is not None else {}
    if name in enclosed:
        try:
            return enclosed[name].cell_contents
        except ValueError:  # nothing has set it yet
            return MISSING
    return getattr(function, "__globals__", {}).get(name, getattr(builtins, name, MISSING))


def full_name(value: object) -> str:
    """The full name of a module, class or function; empty for other values."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return ""


def last_name(node: ast.AST) -> str:
    """A name, or the last one of a chain of attributes; empty for another node.

    >>> [last_name(ast.parse(text, mode="eval").body) for text in ("x", "self.config.x", "f(x)")]
    ['x', 'x', '']
    """
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""
