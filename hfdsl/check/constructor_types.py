"""Types of constructors: what a placed role is built with, against the annotations of its parameters."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from hfdsl.deploy.deployment import Placement
from hfdsl.graph.fits import fits_value


@lru_cache(maxsize=256)
def parameters(role: Any) -> inspect.Signature:
    """The parameters of a role's constructor; a role without one has none, although ``object`` has."""
    return inspect.Signature() if role.__init__ is object.__init__ else inspect.signature(role)


def constructor_of(role: Any) -> Any:
    """The function that builds an object of a class."""
    return role.__init__


def misfits(placement: Placement[Any]) -> Iterator[tuple[str, Any, Any]]:
    """The arguments of a placed role that are not of their annotation: the parameter, the annotation, the value."""
    role: type = placement.role
    taken, types = parameters(role), _types(role)
    try:
        bound = taken.bind(*placement.args, **placement.kwargs).arguments
    except TypeError:
        return  # HF516
    for name, value in bound.items():
        kind = taken.parameters[name].kind
        values = value if kind is inspect.Parameter.VAR_POSITIONAL else [value]
        if kind is inspect.Parameter.VAR_KEYWORD:
            values = list(value.values())
        for entry in values if name in types else ():
            if entry is not taken.parameters[name].default and not fits_value(entry, types[name]):
                yield name, types[name], entry


@lru_cache(maxsize=256)
def _types(role: Any) -> Mapping[str, Any]:
    """The annotations of a constructor, each evaluated by itself: one that cannot be says nothing."""
    types: dict[str, Any] = {}
    constructor = inspect.unwrap(constructor_of(role))
    for name, parameter in parameters(role).parameters.items():
        holder = SimpleNamespace(__annotations__={name: parameter.annotation})
        if parameter.annotation is not inspect.Parameter.empty:
            try:
                types |= typing.get_type_hints(holder, getattr(constructor, "__globals__", {}), {role.__name__: role})
            except Exception:  # noqa: BLE001  # a name that only type checkers see, or any other text
                continue
    return types
