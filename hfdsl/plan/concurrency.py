"""How many calls of a step may be in progress in a process at a time."""

from __future__ import annotations

from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols.role_facts import declared_concurrency


def concurrent_calls(plan: Plan, step: Step) -> int:
    """The number that the role of a step declares for its method; 1 for others."""
    if step.role is None:
        return 1
    place = plan.deployment[step.role]
    return declared_concurrency(place.role, place.args, place.kwargs).get(step.signature.name, 1)
