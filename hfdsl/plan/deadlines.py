"""Deadlines of calls: the nearest one counts, a method's before its role's, and a role's before the launch's.

A function has no role; the process that runs it belongs to some, and has to be free for them again.
"""

from __future__ import annotations

from typing import NamedTuple

from hfdsl.deploy.deployment import Deployment
from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols.register import registered_methods


class CallDeadline(NamedTuple):
    """The seconds that a call may take, and what sets them, for messages."""

    seconds: float
    set_by: str


def role_deadline(deployment: Deployment, role: str) -> CallDeadline | None:
    """The deadline that the placement of a role declares for all its calls."""
    placement = deployment[role]
    if placement.deadline is None:
        return None
    return CallDeadline(placement.deadline, f"hf.place({placement.role.__name__}, ..., deadline=...)")


def step_deadline(plan: Plan, step: Step) -> CallDeadline | None:
    """The deadline that a step's method, or the placement of its role, declares; None for the launch's.

    A function has that of the roles in whose processes it runs: the longest, and the launch's where one has none.
    """
    registration = step.signature.registration
    if registration is not None and registration.deadline is not None:
        return CallDeadline(registration.deadline, f"register(..., deadline=...) of {step.signature.name}")
    if step.role is not None:
        return role_deadline(plan.deployment, step.role)
    roles = [role for group in plan.groups if group.name == step.group for role in group.roles]
    limits = [role_deadline(plan.deployment, role) for role in roles]
    declared = [limit for limit in limits if limit is not None]
    return max(declared) if declared and len(declared) == len(limits) else None


def longest_deadline(deployment: Deployment, seconds: float) -> float:
    """The longest deadline of any call to a deployment's roles, given the launch's deadline."""
    roles = [placement.deadline for placement in deployment.placements.values()]
    kinds = {placement.role for placement in deployment.placements.values()}
    methods = [registration.deadline for kind in kinds for registration in registered_methods(kind).values()]
    return max(seconds, *(deadline or 0.0 for deadline in (*roles, *methods)), 0.0)
