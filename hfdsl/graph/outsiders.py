"""Outsiders: workers that a dataflow uses without taking them as parameters. Tracing does not run their methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.worker import Worker, instead_of_worker


@contextmanager
def refused(body: Callable[..., Any], misuse: Callable[[str, type], Any]) -> Iterator[None]:
    """Within this, a call of a worker that ``body`` names, and the construction of one, is a misuse instead."""
    visible = {name: value for name, value in _names(body) if issubclass(type(value), Worker)}  # a role only says so
    hidden: list[tuple[dict[str, Any], str]] = []
    for name, worker in visible.items():
        for method in registered_methods(type(worker)):
            if method not in vars(worker):
                vars(worker)[method] = _trap(f"{name}.{method}", type(worker), misuse)
                hidden.append((vars(worker), method))
    token = instead_of_worker.set(lambda role: misuse(f"{role.__name__}()", role))
    try:
        yield
    finally:
        instead_of_worker.reset(token)
        for attributes, method in hidden:
            del attributes[method]


def _trap(access: str, role: type, misuse: Callable[[str, type], Any]) -> Callable[..., Any]:
    return lambda *_, **__: misuse(access, role)


def _names(body: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The variables outside of a function that its code names, with their values; so too for helpers of its module."""
    waiting, seen = [body], {id(body)}
    while waiting:
        function = waiting.pop()
        for name, value in _named_by(function):
            yield name, value
            if isinstance(value, FunctionType) and id(value) not in seen and value.__module__ == body.__module__:
                seen.add(id(value))
                waiting.append(value)


def _named_by(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    names = getattr(function, "__globals__", {})
    yield from ((name, names[name]) for name in code.co_names if name in names)
    for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # a cell that is not filled yet
            yield name, cell.cell_contents
