"""Stated facts: do the static methods by which a role states facts take what its constructor takes?

hfdsl never calls a method that does not, so the role states nothing: a plan counts no memory for it, and rules that
need the fact say nothing about the role.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from hfdsl.check.constructor_types import parameters
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.role_facts import FACTS


def facts_take_arguments(context: Context) -> Iterator[Finding]:
    """HF543: each fact takes the arguments that the role is placed with."""
    for name, placement in context.program.placements.items():
        role: type = placement.role
        if not _fits(parameters(role), placement):
            continue  # of which HF516 is
        for fact in FACTS:
            method, mesh = _own_method(role, fact.name), (placement.mesh,) if fact.takes_mesh else ()
            if method is None or _fits(inspect.signature(method), placement, *mesh):
                continue
            taken = ", ".join(inspect.signature(method).parameters)
            needed = ", ".join((*("mesh",) * len(mesh), *parameters(role).parameters))
            yield Finding(
                "HF543",
                f"role '{name}': its '{fact.name}' is never called, since it takes ({taken}) and not ({needed})",
                Label(definition_span(method), f"{role.__name__}.{fact.name}"),
                (Label(placement.span, "its arguments"),),
                notes=(f"let '{fact.name}' take ({needed})",),
            )


def _own_method(role: type, name: str) -> Callable[..., Any] | None:
    """The static method by which a role states a fact; None without one, or if a base of its constructor's states it.

    A subclass with a constructor of its own may do without the facts of its base.
    """
    for base in role.__mro__:
        method = vars(base).get(name)
        if method is not None:
            return method.__func__ if isinstance(method, staticmethod) else None
        if "__init__" in vars(base):
            return None
    return None


def _fits(signature: inspect.Signature, placement: Placement[Any], *before: object) -> bool:
    """Whether a function can be called with the arguments of a placement."""
    try:
        signature.bind(*before, *placement.args, **placement.kwargs)
    except TypeError:
        return False
    return True
