"""Calls with arguments that a constructor or function does not have: a typed error in place of ``TypeError``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from hfdsl.errors import HfError
from hfdsl.types.similar_names import closest

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def takes(error: type[HfError], code: str, callee: str) -> Callable[[F], F]:
    """Refuse arguments that the decorated function does not have; the message calls it ``callee``.

    >>> @takes(HfError, "HF501", "hf.Mesh")
    ... def mesh(dp: int = 1, tp: int = 1) -> int:
    ...     return dp * tp
    >>> mesh(tpp=2)
    Traceback (most recent call last):
    hfdsl.errors.HfError: HF501: hf.Mesh has no parameter 'tpp'; did you mean 'tp'?
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as raised:
                if problem := _problem(function, args, kwargs):
                    raise error(code, f"{callee} {problem}") from None
                raise raised from None

        return checked  # type: ignore[return-value]  # the same signature

    return decorate


def constructor_takes(error: type[HfError], code: str, callee: str) -> Callable[[C], C]:
    """``takes`` for the constructor of a class."""

    def decorate(cls: C) -> C:
        constructor: Any = cls
        constructor.__init__ = takes(error, code, callee)(constructor.__init__)
        return cls

    return decorate


def _problem(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why arguments cannot be bound; None if they can be."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        parameters = [parameter for name, parameter in signature.parameters.items() if name != "self"]
        names = [parameter.name for parameter in parameters]
        by_name = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        if by_name is not None and len(parameters) == 1:
            return f"takes its {by_name} by name, NAME=..., and got {len(args) - 1} without one"
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            return f"has no parameter {unknown[0]!r}; {closest(unknown[0], names)}"
        return f"is called with the wrong arguments: {error}; its parameters: {', '.join(names)}"
    return None
