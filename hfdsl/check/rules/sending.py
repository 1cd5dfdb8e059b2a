"""Lowering: can what the program is made of be sent to the processes that run it?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.sendable import unsendable
from hfdsl.check.sources import argument_span
from hfdsl.check.subject import Subject, signature_of
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.graph.program import Constant, Graph
from hfdsl.graph.spans import definition_span

LOCAL = 'backend="local" keeps all ranks in this process; backend="ray" sends every process what it needs'


def values_can_be_sent(subject: Subject) -> Iterator[Finding]:
    """What roles and calls are given is data, not something that belongs to the driver's process."""
    if subject.deployment is not None:
        yield from unsendable_values(subject.graph, subject.deployment)


def unsendable_values(graph: Graph, deployment: Deployment) -> Iterator[Finding]:
    """The values of a program that no pickler takes."""
    for role, placement in deployment.placements.items():
        for name, value in _arguments(placement).items():
            if found := unsendable(value, name):
                path, kind = found
                yield Finding(
                    "HF802",
                    f"role '{role}' is given {path}, {kind}, which cannot be sent to another process",
                    Label(placement.span),
                    notes=(LOCAL, f"give what it is made from, and let {placement.role.__name__}.__init__ make it"),
                )
    for node in graph.nodes:
        signature = signature_of(node)
        for name, operand in node.arguments if signature else ():
            if isinstance(operand, Constant) and (found := unsendable(operand.value, name)):
                path, kind = found
                yield Finding(
                    "HF802",
                    f"'{node.label}' is given {path}, {kind}, which cannot be sent to another process",
                    Label(argument_span(node.span, signature, name)),
                    notes=(LOCAL, "give what it is made from, and let the body make it"),
                )
    for name, code in _code(graph, deployment).items():
        if found := unsendable(code, name):
            path, kind = found
            yield Finding(
                "HF802",
                f"'{name}' uses {path}, {kind}, and is sent with what it uses, which cannot be sent to another process",
                Label(definition_span(code)),
                notes=(LOCAL, f"make {path} where it is used, or within a role's __init__"),
            )


def _arguments(placement: Placement[Any]) -> dict[str, Any]:
    """The constructor's arguments by parameter."""
    try:
        bound = inspect.signature(placement.role).bind(*placement.args, **placement.kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"argument {i}": value for i, value in enumerate(placement.args, 1)} | dict(placement.kwargs)
    return bound


def _code(graph: Graph, deployment: Deployment) -> dict[str, Any]:
    """The role classes and function bodies that processes run, by name."""
    roles = {placement.role.__name__: placement.role for placement in deployment.placements.values()}
    signatures = [s for node in graph.calls if (s := signature_of(node)) is not None and s.registration is None]
    return {**roles, **{signature.name: signature.body for signature in signatures}}
