# mypy: disable-error-code="empty-body"
"""What cannot be sent is found by its type; held against cloudpickle, which has the last word."""

from __future__ import annotations

import contextvars
import copyreg
import functools
import io
import logging
import os
import queue
import re
import socket
import sqlite3
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.check.rules.dataflow.serialization import BOUND, by_value, unsendable

LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Config:
    rate: float
    log: object


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Careful(Holder):
    def __getstate__(self) -> dict[str, object]:
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Careful, ()


class Forgetful(Holder):
    def __getstate__(self) -> dict[str, object]:
        return {}


@dataclass
class Settings:
    rate: float
    log: object

    def __getstate__(self) -> dict[str, object]:
        return {"rate": self.rate}


class Guarded:
    lock = LOCK


class Registered(Holder):
    """A class for whose instances a function is registered."""


copyreg.pickle(Registered, lambda _: (Registered, ()))


class Worker(threading.Thread):
    """A thread of its own kind."""


class Locker(threading.Thread):
    def __reduce__(self) -> tuple[Any, ...]:
        return Locker, ()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    with ExitStack() as stack:
        (tmp_path / "log").write_text("a line\n")
        yield lambda mode: stack.enter_context((tmp_path / "log").open(mode))


def uses_a_lock() -> Callable[[], object]:
    lock = threading.Lock()
    return lambda: lock


def coroutine() -> Any:
    async def nothing() -> None: ...

    waiting = nothing()
    waiting.close()
    return waiting


def knot() -> list[object]:
    items: list[object] = []
    items.append(items)
    return items


SENDABLE: list[Callable[[], object]] = [
    lambda: None,
    lambda: [1, "a", {"b": (2.0, {3})}],
    lambda: [1] * 100_000,
    lambda: torch.nn.Linear(2, 2),
    lambda: Config(0.1, logging.getLogger("hfdsl")),
    knot,
    Careful,
    Forgetful,
    Guarded,  # its class is imported where it arrives
    lambda: Settings(0.1, LOCK),
    Registered,
    Locker,
    lambda: len,
    lambda: lambda: 3,
    lambda: functools.partial(print, 3),
    lambda: types.SimpleNamespace(a=3),
    lambda: io.BytesIO(b"x"),
    lambda: io.StringIO("x"),
    lambda: iter([1]),
    lambda: re.compile("a"),
    lambda: os,
    lambda: Holder,
    lambda: Guarded,
    lambda: hf.ResourcePool([1]),
    lambda: range(3),
    lambda: types.MappingProxyType({1: 2}),
    lambda: "abc".upper,
]


@pytest.mark.parametrize("make", SENDABLE)
def test_a_value_that_can_be_sent_is_silent(make: Callable[[], object]) -> None:
    cloudpickle: Any = pytest.importorskip("ray.cloudpickle")
    cloudpickle.dumps(make())
    assert unsendable(make(), "x") is None


class Knot:
    def __init__(self) -> None:
        self.next, self.log = self, [threading.RLock()]


UNSENDABLE: list[tuple[Callable[[], object], str, str]] = [
    (threading.Lock, "x", "a lock"),
    (threading.RLock, "x", "a lock"),
    (lambda: {"a": [threading.Event()]}, "x['a'][0]._cond._lock", "a lock"),
    (queue.Queue, "x.mutex", "a lock"),
    (threading.Thread, "x", "a thread"),
    (Worker, "x", "a thread"),
    (threading.local, "x", "thread-local data"),
    (lambda: contextvars.ContextVar("y"), "x", "a context variable"),
    (lambda: (i for i in range(3)), "x", "a generator"),
    (coroutine, "x", "a coroutine"),
    (lambda: Config(0.1, threading.Lock()), "x.log", "a lock"),
    (Holder, "x.lock", "a lock"),
    (Knot, "x.log[0]", "a lock"),
    (lambda: functools.partial(print, threading.Lock()), "x[0]", "a lock"),
    (uses_a_lock, "lock", "a lock"),
    (lambda: Holder().__init__, "x.__self__.lock", "a lock"),  # type: ignore[misc]  # a bound method of it
    (sys._getframe, "x", "a frame"),
    (logging.StreamHandler, "x.lock", "a lock"),
]


@pytest.mark.parametrize(("make", "path", "kind"), UNSENDABLE)
def test_a_value_that_cannot_be_sent_is_reported_with_its_path(
    make: Callable[[], object], path: str, kind: str
) -> None:
    cloudpickle: Any = pytest.importorskip("ray.cloudpickle")
    value = make()
    assert unsendable(value, "x") == (path, kind)
    with pytest.raises((TypeError, AttributeError, ValueError)):
        cloudpickle.dumps(value)


def test_files_and_connections(opened: Callable[[str], Any]) -> None:
    for mode in ("w", "a", "r+", "rb", "wb", "r+b"):
        assert unsendable({"log": opened(mode)}, "config") == ("config['log']", "an open file"), mode
    assert unsendable(opened("r"), "x") is None  # travels as its text
    assert unsendable([sys.stdin, sys.stdout, sys.stderr], "x") is None
    with closing(socket.socket()) as connection, closing(sqlite3.connect(":memory:")) as database:
        assert unsendable(connection, "x") == ("x", "a socket")
        assert unsendable(database, "x") == ("x", "a database connection")
    with tempfile.NamedTemporaryFile() as file:
        assert unsendable(file, "x") == ("x.file", "an open file")


def test_a_large_value_is_looked_at_in_part() -> None:
    looked: list[int] = []

    class Counted:
        def __init__(self, depth: int) -> None:
            self.parts = [Counted(depth - 1) for _ in range(30)] if depth else []

        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                looked.append(1)
            return super().__getattribute__(name)

    assert unsendable(Counted(3), "x") is None  # 27,931 objects
    assert 0 < len(looked) <= BOUND


# -- functions and classes


def names_the_lock() -> object:
    return LOCK


def made_here() -> tuple[type, Callable[[], object], Callable[[Any], object]]:
    class Role(hf.Worker):
        def work(self) -> object:
            return [LOCK for _ in range(3)]

    def body() -> object:
        return LOCK

    def other(config: Any) -> object:
        return config.LOCK

    return Role, body, other


def nested(times: int) -> object:
    value: object = threading.Lock()
    for _ in range(times):
        value = [value]
    return value


def test_so_many_objects_are_looked_at() -> None:
    assert unsendable(nested(BOUND - 1), "x") == (f"x{'[0]' * (BOUND - 1)}", "a lock")
    assert unsendable(nested(BOUND), "x") is None


def test_code_of_the_program_that_runs_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    body = types.FunctionType(names_the_lock.__code__, globals(), "body")
    body.__module__, body.__qualname__ = "__main__", "body"
    monkeypatch.setattr(sys.modules["__main__"], "body", body, raising=False)
    assert by_value(body)
    body.__module__ = "a_module_that_is_not_here"
    assert by_value(body)


def test_classes_take_along_what_their_bases_have() -> None:
    class Base:
        lock = threading.Lock()

    class Role(Base): ...

    class Named(Guarded): ...

    assert unsendable(Role, "Role") == ("Base.lock", "a lock")
    assert unsendable(Named, "Named") is None


def test_code_that_is_sent_by_name_takes_nothing_along() -> None:
    assert not by_value(names_the_lock)
    assert not by_value(Holder)
    assert unsendable(names_the_lock, "x") is None


def test_code_that_is_sent_by_value_takes_along_what_it_uses() -> None:
    role, body, other = made_here()
    assert by_value(role)
    assert by_value(body)
    assert unsendable(role, "Role") == ("LOCK", "a lock")
    assert unsendable(body, "body") == ("LOCK", "a lock")
    assert unsendable(other, "other") is None  # an attribute of that name
    assert unsendable(hf.function(body), "body") == ("LOCK", "a lock")


def test_defaults_go_with_a_function_that_is_sent_as_it_is() -> None:
    def body(rows: object, lock: object = threading.Lock()) -> object:  # on purpose
        return rows, lock

    def other(rows: object, *, lock: object = threading.Lock()) -> object:
        return rows, lock

    assert unsendable(body, "body") == ("a default of body", "a lock")
    assert unsendable(other, "other") == ("a default of other", "a lock")
