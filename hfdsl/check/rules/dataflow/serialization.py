"""Serialization: can the values and the code of a program be pickled for the processes that run it?

The rule recognizes values that no pickler takes by their type, and pickles nothing.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from hfdsl.check.constructor_types import parameters
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import argument_span
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.graph.program import Constant, Graph
from hfdsl.graph.spans import definition_span

LOCAL = 'backend="local" keeps all ranks in this process; backend="ray" sends every process what it needs'

UNSENDABLE = {
    "_io.BufferedRandom": "an open file",
    "_io.BufferedReader": "an open file",
    "_io.BufferedWriter": "an open file",
    "_io.FileIO": "an open file",
    "_io.TextIOWrapper": "an open file",
    "_thread.RLock": "a lock",
    "_thread._local": "thread-local data",
    "_thread.lock": "a lock",
    "async_generator": "an asynchronous generator",
    "coroutine": "a coroutine",
    "frame": "a frame",
    "generator": "a generator",
    "_contextvars.ContextVar": "a context variable",
    "socket.socket": "a socket",
    "sqlite3.Connection": "a database connection",
    "threading.Thread": "a thread",
    "traceback": "a traceback",
}
"""Types that belong to their process, by name, so that none of their modules has to be imported."""

BOUND, ENTRIES = 2000, 50
"""How many objects are examined in all, and how many entries of one container."""


def unsendable(value: Any, path: str) -> tuple[str, str] | None:
    """The path to an object within ``value`` that cannot be pickled, and its kind; None if there is none.

    An object that defines how it is pickled (``__reduce__``, ``__getstate__``) is trusted.

    >>> unsendable({"rows": (i for i in range(3))}, "config")
    ("config['rows']", 'a generator')
    """
    seen: dict[int, Any] = {}
    waiting = deque([(value, path)])
    while waiting and len(seen) < BOUND:
        part, where = waiting.popleft()
        if id(part) in seen or isinstance(part, (str, bytes, int, float, types.ModuleType)):
            continue
        seen[id(part)] = part  # kept: the id of a value that is gone is another's
        kind = _kind(part)
        if kind is not None:
            return where, kind
        waiting.extend(_parts(part, where))
    return None


def _kind(value: Any) -> str | None:
    cls = type(value)
    for base in cls.__mro__:
        kind = UNSENDABLE.get(base.__qualname__ if base.__module__ == "builtins" else _path(base))
        if kind is not None:
            inherited = base.__reduce_ex__ is cls.__reduce_ex__ and base.__reduce__ is cls.__reduce__
            return kind if inherited and not _has_reducer(cls) and not _is_text_to_read(value) else None
    return None


def _has_reducer(cls: type) -> bool:
    """Whether a function is registered that pickles this class, for all pickling or with Ray's serializer."""
    pickler = getattr(sys.modules.get("ray.cloudpickle"), "CloudPickler", None)
    table = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    return cls in table and cls.__module__ != "_io"  # Ray's own for files takes those to read text from


def _is_text_to_read(value: Any) -> bool:
    """Whether it is a text file open for reading, which is sent as its text, or one that every process has."""
    return value in (sys.stdin, sys.stdout, sys.stderr) or getattr(value, "mode", None) in ("r", "rt")


def _parts(value: Any, where: str) -> Iterable[tuple[Any, str]]:
    match value:
        case list() | tuple() | set() | frozenset() | deque():
            return ((entry, f"{where}[{i}]") for i, entry in enumerate(islice(value, ENTRIES)))
        case dict():
            return [(entry, f"{where}[{key!r}]") for key, entry in islice(value.items(), ENTRIES)]
        case functools.partial():
            return [(value.func, where), (value.args, where), (value.keywords, where)]
        case types.MethodType():
            return [(value.__self__, f"{where}.__self__"), (value.__func__, where)]
        case types.FunctionType():
            return _captured(value, where) if by_value(value) else ()
        case type():
            return _members(value) if by_value(value) else ()
    return _attributes(value, where)


def _attributes(value: Any, where: str) -> Iterator[tuple[Any, str]]:
    """The attributes of an object that has no pickling method."""
    cls: Any = type(value)
    plain = cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    usual = cls.__getstate__ is object.__getstate__ or getattr(cls.__getstate__, "__module__", "") == "dataclasses"
    if not plain or not usual or _has_reducer(cls):
        return
    names = [field.name for field in fields(value)] if is_dataclass(value) else []
    for name in dict.fromkeys([*names, *islice(getattr(value, "__dict__", {}), ENTRIES)]):
        with suppress(AttributeError):
            yield object.__getattribute__(value, name), f"{where}.{name}"


def _captured(function: types.FunctionType, where: str) -> Iterator[tuple[Any, str]]:
    """The objects that are pickled with a function by value: its closure, and the globals that it names."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a cell that is not filled yet
            yield cell.cell_contents, name
    for name in sorted(_names(code)):
        if name in function.__globals__:
            yield function.__globals__[name], name
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield default, f"a default of {where}"


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """The global variables that a body and its inner functions name."""
    import dis  # not at the top: `import hfdsl` is kept fast

    named = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(named.union(*map(_names, inner)))


def _members(cls: type) -> Iterator[tuple[Any, str]]:
    yield from ((base, base.__name__) for base in cls.__bases__)
    for name, member in vars(cls).items():
        inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        yield inner, f"{cls.__name__}.{name}"


def by_value(code: Any) -> bool:
    """Whether a class or function is pickled by value, because importing its module would not yield it."""
    module = getattr(code, "__module__", None) or ""
    if module == "__main__":
        return True
    member: Any = sys.modules.get(module)
    for part in code.__qualname__.split("."):
        member = getattr(member, part, None)
    return member is not code


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def values_can_be_sent(context: Context) -> Iterator[Finding]:
    """Roles and calls take data, nothing that belongs to the driver's process."""
    if context.program.deployment is not None:
        yield from unsendable_values(context.program.graph, context.program.deployment)


def unsendable_values(graph: Graph, deployment: Deployment) -> Iterator[Finding]:
    """The values of a program that no pickler takes."""
    for role, placement in deployment.placements.items():
        for name, value in _arguments(placement).items():
            if fault := unsendable(value, name):
                path, kind = fault
                yield Finding(
                    "HF802",
                    f"role '{role}' is given {path}, {kind}, which cannot be sent to another process",
                    Label(placement.span),
                    notes=(LOCAL, f"pass what it is built from, and build it in {placement.role.__name__}.__init__"),
                )
    for node, signature in graph.bodies:
        for name, operand in node.arguments:
            if isinstance(operand, Constant) and (fault := unsendable(operand.value, name)):
                path, kind = fault
                yield Finding(
                    "HF802",
                    f"'{node.label}' is given {path}, {kind}, which cannot be sent to another process",
                    Label(argument_span(node.span, signature, name)),
                    notes=(LOCAL, "pass what it is built from, and build it in the body"),
                )
    for name, code in _code(graph, deployment).items():
        if fault := unsendable(code, name):
            path, kind = fault
            yield Finding(
                "HF802",
                f"'{name}' uses {path}, {kind}, and is sent with what it uses, which cannot be sent to another process",
                Label(definition_span(code)),
                notes=(LOCAL, f"make {path} where it is used, or within a role's __init__"),
            )


def _arguments(placement: Placement[Any]) -> dict[str, Any]:
    """The constructor's arguments by parameter."""
    try:
        role: type = placement.role
        bound = parameters(role).bind(*placement.args, **placement.kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"argument {i}": value for i, value in enumerate(placement.args, 1)} | dict(placement.kwargs)
    return bound


def _code(graph: Graph, deployment: Deployment) -> dict[str, Any]:
    """The role classes and function bodies that processes run, by name."""
    roles = {placement.role.__name__: placement.role for placement in deployment.placements.values()}
    functions = {signature.name: signature.body for _, signature in graph.bodies if signature.registration is None}
    return {**roles, **functions}
