"""Constructor types: the arguments of a placed role against the annotations of its constructor."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from hfdsl.deploy.deployment import Placement
from hfdsl.graph.fits import field_misfit, fits_value
from hfdsl.types.bounds import Within, annotations_of, bounds_of


@lru_cache(maxsize=256)
def parameters(role: Any) -> inspect.Signature:
    """The parameters of a role's constructor; a role without one has none, although ``object`` has.

    Those of ``__init__``: of a class that inherits it, Python 3.11.2 reads those of ``Worker.__new__``.
    """
    if role.__init__ is object.__init__:
        return inspect.Signature()
    signature = inspect.signature(role.__init__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def constructor_of(role: Any) -> Any:
    """The function that builds an object of a class."""
    return role.__init__


def misfits(placement: Placement[Any]) -> Iterator[tuple[str, Any, Any]]:
    """The arguments of a placed role that are not of their annotation: the parameter, the annotation, the value.

    Of a dataclass that has a wrong field, the path of the field: ``config.optimizer.rate``.
    """
    role: type = placement.role
    signature, types = parameters(role), _types(role)
    try:
        bound = signature.bind(*placement.args, **placement.kwargs).arguments
    except TypeError:
        return  # HF516
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        values = value if kind is inspect.Parameter.VAR_POSITIONAL else [value]
        if kind is inspect.Parameter.VAR_KEYWORD:
            values = list(value.values())
        for entry in values if name in types else ():
            if entry is signature.parameters[name].default:
                continue
            if not fits_value(entry, types[name]):
                yield name, types[name], entry
            elif (wrong := field_misfit(entry)) is not None:
                field, annotation, inner = wrong
                yield f"{name}.{field}", annotation, inner


def numbers_out_of_bounds(placement: Placement[Any]) -> Iterator[tuple[str, Within, float]]:
    """The numbers that a placed role is built with and whose annotation declares other bounds.

    Each with its path: the parameter, then the fields of dataclasses.
    """
    role: type = placement.role
    try:
        bound = parameters(role).bind(*placement.args, **placement.kwargs).arguments
    except TypeError:
        return  # HF516
    for name, value in bound.items():
        yield from _refused(name, _types(role, extras=True).get(name), value)


def _refused(
    path: str, annotation: Any, value: Any, within: tuple[object, ...] = ()
) -> Iterator[tuple[str, Within, float]]:
    bounds = bounds_of(annotation)
    if bounds is not None and bounds.refuses(value):
        yield path, bounds, value
    if is_dataclass(value) and not isinstance(value, type) and not any(value is outer for outer in within):
        for name, kind in annotations_of(type(value)).items():
            yield from _refused(f"{path}.{name}", kind, getattr(value, name, None), (*within, value))


@lru_cache(maxsize=256)
def _types(role: Any, *, extras: bool = False) -> Mapping[str, Any]:
    """The annotations of a constructor."""
    constructor = inspect.unwrap(constructor_of(role))
    scope = getattr(constructor, "__globals__", {}), {role.__name__: role}
    return annotations_one_by_one(parameters(role), *scope, extras=extras)


def annotations_one_by_one(
    signature: inspect.Signature, names: dict[str, Any], further: Mapping[str, Any], *, extras: bool
) -> Mapping[str, Any]:
    """The annotations of parameters as objects, each evaluated by itself: one that cannot be says nothing.

    With ``extras`` what ``Annotated`` adds stays.
    """
    types: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        holder = SimpleNamespace(__annotations__={name: parameter.annotation})
        if parameter.annotation is not inspect.Parameter.empty:
            try:
                types |= typing.get_type_hints(holder, names, further, include_extras=extras)
            except Exception:  # noqa: BLE001  # a name that only type checkers see, or any other text
                continue
    return types
