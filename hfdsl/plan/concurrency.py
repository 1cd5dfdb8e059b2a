"""How many calls of a step may be in progress in a process at a time."""

from __future__ import annotations

from hfdsl.graph.program import RoleCall
from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols import role_facts


def concurrent_calls(plan: Plan, step: Step) -> int:
    """The number that the role of a step declares for its method; 1 for others."""
    if step.role is None:
        return 1
    place = plan.deployment[step.role]
    return role_facts.concurrent_calls.of(place).get(step.signature.name, 1)


def calls_at_once(plan: Plan, step: Step) -> int:
    """The number that a run of this plan lets be in progress: 1 without a lag, and without weights in flight."""
    loads = (plan.node(load.node).op for load in plan.steps if plan.split.queues and plan.loads_in_flight(load))
    during = {(op.role, op.during) for op in loads if isinstance(op, RoleCall)}
    return concurrent_calls(plan, step) if (step.role, step.signature.name) in during else 1
