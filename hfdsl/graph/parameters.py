"""The parameters of a dataflow that have defaults: options, and optional roles.

A role is optional where the annotation is ``Sampler | None`` and the default None::

    @hf.dataflow
    def learn(prompts: Prompts, actor: Actor, sampler: Sampler | None = None) -> Metrics:
        if sampler is not None:
            hf.sync(actor, sampler)
        rollout = (actor if sampler is None else sampler).generate(prompts)
        return actor.update(rollout)

A trace makes one program of it. The parameter is None there, or a role: where a deployment places the role, or where
``learn.given(sampler=Sampler)`` asks for it. That class is then the parameter's default, so that whatever traces the
function knows that the role is present.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import FunctionType, NoneType
from typing import Any, ParamSpec, TypeVar, get_args

from hfdsl.errors import DefinitionError
from hfdsl.graph.annotations import type_hints
from hfdsl.protocols.worker import Worker
from hfdsl.types.bounds import is_union

P = ParamSpec("P")
R = TypeVar("R")


def optional_role(annotation: Any) -> type[Worker] | None:
    """The class of ``Sampler | None``; None for an annotation of anything else.

    >>> class Sampler(Worker): ...
    >>> optional_role(Sampler | None), optional_role(Sampler), optional_role(int | None)
    (<class '...Sampler'>, None, None)
    """
    options = get_args(annotation) if is_union(annotation) else ()
    roles = [kind for kind in options if isinstance(kind, type) and issubclass(kind, Worker)]
    return roles[0] if len(roles) == 1 and set(options) == {roles[0], NoneType} else None


def present_role(parameter: inspect.Parameter, annotation: Any) -> type[Worker] | None:
    """The class of a present optional role, which is the parameter's default; None for any other parameter."""
    role, default = optional_role(annotation), parameter.default
    return default if role is not None and isinstance(default, type) and issubclass(default, role) else None


def optional_roles(body: Callable[..., Any]) -> dict[str, type[Worker]]:
    """The optional roles of a dataflow, by parameter; none if its annotations cannot be evaluated (HF109)."""
    parameters = inspect.signature(body).parameters.items()
    defaults = [parameter.default for _, parameter in parameters if parameter.default is not parameter.empty]
    if not any(default is None or isinstance(default, type) for default in defaults):
        return {}  # as in most dataflows: to evaluate annotations that are text takes long
    try:
        hints = type_hints(body, f"'{body.__name__}'")
    except DefinitionError:
        return {}
    roles = {
        name: optional_role(hints.get(name))
        for name, parameter in parameters
        if parameter.default is None or present_role(parameter, hints.get(name)) is not None
    }
    return {name: role for name, role in roles.items() if role is not None}


def with_placed_roles(body: Callable[P, R], placed: Collection[str]) -> Callable[P, R]:
    """The dataflow with the optional roles that are placed."""
    parameters = inspect.signature(body).parameters
    absent = [name for name in placed if name in parameters and parameters[name].default is None]
    present = {name: role for name, role in optional_roles(body).items() if name in absent} if absent else {}
    return with_defaults(body, present) if present else body


def with_defaults(body: Callable[P, R], defaults: Mapping[str, Any]) -> Callable[P, R]:
    """Copy a function with other defaults of some parameters.

    >>> def power(base: int, exponent: int = 2, *, sign: int = 1) -> int:
    ...     return sign * base**exponent
    >>> with_defaults(power, {"exponent": 3, "sign": -1})(2), power(2)
    (-8, 4)
    """
    if not isinstance(body, FunctionType):
        return functools.wraps(body)(functools.partial(body, **defaults))
    new = FunctionType(body.__code__, body.__globals__, body.__name__, None, body.__closure__)
    functools.update_wrapper(new, body)
    del new.__wrapped__  # type: ignore[attr-defined]  # it stands for itself
    parameters = inspect.signature(body).parameters.values()
    values = {parameter: defaults.get(parameter.name, parameter.default) for parameter in parameters}
    filled = {parameter: value for parameter, value in values.items() if value is not parameter.empty}
    keyword_only = {p.name: value for p, value in filled.items() if p.kind is p.KEYWORD_ONLY}
    new.__defaults__ = tuple(value for p, value in filled.items() if p.kind is not p.KEYWORD_ONLY)
    new.__kwdefaults__ = keyword_only
    return new
