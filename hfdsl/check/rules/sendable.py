"""Can a value be sent to another process? What no pickler takes is found by its type, and nothing is pickled for it."""

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
"""Types that belong to their process, by name: none of their modules has to be imported to know one."""

BOUND, ENTRIES = 2000, 50
"""How many objects are looked at in all, and how many entries of one container."""


def unsendable(value: Any, path: str) -> tuple[str, str] | None:
    """The path to something within ``value`` that no pickler takes, and what it is; None where nothing is found.

    What has its own way of being pickled (``__reduce__``, ``__getstate__``) is trusted.

    >>> unsendable({"rows": (i for i in range(3))}, "config")
    ("config['rows']", 'a generator')
    """
    seen: dict[int, Any] = {}
    waiting = deque([(value, path)])
    while waiting and len(seen) < BOUND:
        one, where = waiting.popleft()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, types.ModuleType)):
            continue
        seen[id(one)] = one  # kept: the id of a value that is gone is another's
        kind = _kind(one)
        if kind is not None:
            return where, kind
        waiting.extend(_parts(one, where))
    return None


def _kind(value: Any) -> str | None:
    cls = type(value)
    for base in cls.__mro__:
        kind = UNSENDABLE.get(base.__qualname__ if base.__module__ == "builtins" else _path(base))
        if kind is not None:
            own = base.__reduce_ex__ is cls.__reduce_ex__ and base.__reduce__ is cls.__reduce__
            return kind if own and not _has_reducer(cls) and not _is_text_to_read(value) else None
    return None


def _has_reducer(cls: type) -> bool:
    """Whether a function is registered that pickles this class, for all pickling or with Ray's serializer."""
    pickler = getattr(sys.modules.get("ray.cloudpickle"), "CloudPickler", None)
    table = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    return cls in table and cls.__module__ != "_io"  # Ray's own for files takes those to read text from


def _is_text_to_read(value: Any) -> bool:
    """Whether it is a text file open for reading, which travels as its text, or one that every process has."""
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
    """The attributes of an object that is pickled as any other."""
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
    """What a function that is sent by value takes along: its closure, and the variables of its module that it names."""
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
    """The global variables that a body names, those of its inner functions too."""
    import dis  # not at the top: `import hfdsl` is kept fast

    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(found.union(*map(_names, inner)))


def _members(cls: type) -> Iterator[tuple[Any, str]]:
    yield from ((base, base.__name__) for base in cls.__bases__)
    for name, member in vars(cls).items():
        inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        yield inner, f"{cls.__name__}.{name}"


def by_value(subject: Any) -> bool:
    """Whether a class or function is sent as it is, because no import of its module would give it."""
    module = getattr(subject, "__module__", None) or ""
    if module == "__main__":
        return True
    found: Any = sys.modules.get(module)
    for part in subject.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not subject


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
