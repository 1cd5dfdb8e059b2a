"""Obstacles: can every role be constructed, with its configuration and on its mesh?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.deploy.weight_syncs import overrides
from hfdsl.protocols import role_facts
from hfdsl.protocols.role_facts import Obstacle


def roles_can_be_constructed(context: Context) -> Iterator[Finding]:
    """No role states an obstacle to its construction; each has the code that the constructor would raise."""
    deployment = context.program.deployment
    for role, place, obstacle in obstructed(deployment) if deployment is not None else ():
        notes = (obstacle.help,) if obstacle.help else ()
        yield Finding(obstacle.code, message(role, obstacle), Label(place.span), notes=notes)


def obstructed(deployment: Deployment) -> Iterator[tuple[str, Placement[Any], Obstacle]]:
    """The roles with the obstacles that they state, except where a derived class has a constructor of its own."""
    for role, place in deployment.placements.items():
        if not overrides(place.role, "__init__", stated_by="obstacles"):
            for obstacle in role_facts.obstacles.of(place):
                yield role, place, obstacle


def message(role: str, obstacle: Obstacle) -> str:
    """The message of the finding about an obstacle."""
    return f"'{role}': {obstacle.text}"
