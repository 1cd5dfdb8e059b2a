"""Call obstacles: does a dataflow call a method that its role cannot run, as it is built?"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.deploy.weight_syncs import overrides
from hfdsl.graph.program import Node
from hfdsl.protocols import role_facts


def roles_run_their_calls(context: Context) -> Iterator[Finding]:
    """HF812: no role states that a method which the dataflow calls cannot run."""
    for call, message in failing_calls(context.program):
        place = context.program.placement(call)
        if place is not None:
            yield Finding("HF812", message, Label(call.span), (Label(place.span, "configured here"),))


def failing_calls(program: Program) -> Iterator[tuple[Node, str]]:
    """The calls that fail, each with the message of its finding; a class with another method states nothing of it."""
    for call, signature in program.graph.bodies:
        place = program.placement(call)
        if place is None:
            continue
        obstacle = role_facts.call_obstacles.of(place).get(signature.name)
        own = (overrides(place.role, name, stated_by="call_obstacles") for name in ("__init__", signature.name))
        if obstacle is not None and not any(own):
            yield call, f"'{call.label}' {obstacle}"
