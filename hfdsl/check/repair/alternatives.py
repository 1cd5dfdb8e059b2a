"""Alternatives: a changed deployment or registration, and whether a program works with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Fix
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.check.sizes.requirements import Scope, config_fields, holds
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import infer
from hfdsl.graph.program import Node, RoleCall
from hfdsl.protocols.conditions import requirements_of
from hfdsl.protocols.register import Registration
from hfdsl.types.dims import Answer

MOVE = 20  # how many demands take as long as placing roles otherwise


def changed(deployment: Deployment, placements: Mapping[str, Placement[Any]]) -> Deployment:
    """The deployment with some roles placed elsewhere."""
    return with_placements(deployment, {**deployment.placements, **placements})


def with_placements(deployment: Deployment, placements: Mapping[str, Placement[Any]]) -> Deployment:
    """The deployment with exactly these placements."""
    changed = copy(deployment)
    changed.placements = dict(placements)
    return changed


def with_moved_roles(placements: Mapping[str, Placement[Any]], context: Context) -> Context | None:
    """The program with some roles placed elsewhere."""
    deployment = context.program.deployment
    if deployment is None:
        return None
    return context.with_program(replace(context.program, deployment=changed(deployment, placements)))


def placing(words: str, placements: Mapping[str, Placement[Any]], fix: Fix | None = None) -> Suggestion:
    """The suggestion to place some roles elsewhere."""
    return Suggestion((Change(words, partial(with_moved_roles, placements), fix),))


def registered(body: Callable[..., Any], registration: Registration, context: Context) -> Context:
    """The program with another registration of a method."""

    def changed_node(node: Node) -> Node:
        if not isinstance(node.op, RoleCall) or node.op.signature.body is not body:
            return node
        return replace(node, op=replace(node.op, signature=replace(node.op.signature, registration=registration)))

    program = context.program
    graph = replace(program.graph, nodes=tuple(map(changed_node, program.graph.nodes)))
    return context.with_program(replace(program, graph=graph, inference=infer(graph)))


def works(context: Context, placements: Mapping[str, Placement[Any]]) -> bool:
    """Whether rows and roles fit at least as well as now with some roles placed elsewhere."""
    if not context.budget.spend("moves", MOVE + context.cost):
        return False
    deployment, after = context.program.deployment, with_moved_roles(placements, context)
    if deployment is None or after is None:
        return False
    unmet_after = sum(len(unmet(placement)) for placement in placements.values())
    unmet_now = sum(len(unmet(deployment[name])) for name in placements)
    return unmet_after <= unmet_now and _broken_calls(after) <= _broken_calls(context)


def _broken_calls(context: Context) -> int:
    """Count the pairs of a call and a demand that it violates."""
    return len({(node.id, demand.why) for demand in context.refuted for node in demand.nodes})


def unmet(placement: Placement[Any]) -> dict[str, str]:
    """The requirements of a role's class that its config and mesh do not meet, with the numbers that show it."""
    numbers: dict[str, str] = {}
    for text in requirements_of(placement.role):
        try:
            answer, values = holds(text, scope_of(placement))
        except DefinitionError:
            continue  # reported by the rule on classes
        if answer is Answer.REFUTED:
            numbers[text] = values
    return numbers


def scope_of(placement: Placement[Any]) -> Scope:
    """The scope of a requirement of a role's class, at its placement."""
    return Scope({}, placement, fields=config_fields(placement) or {})
