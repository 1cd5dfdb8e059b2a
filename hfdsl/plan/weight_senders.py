"""Processes that send weights by a collective operation, and wait for their readers until these have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hfdsl.deploy.deployment import Deployment, TransportName
from hfdsl.graph.columns import columns_read
from hfdsl.plan.payloads import Process, planned_topology
from hfdsl.plan.plan import Plan
from hfdsl.plan.segments import dependencies
from hfdsl.plan.transports import broadcasts, exchanges


def weight_senders(plan: Plan) -> Mapping[int, tuple[Process, ...]]:
    """By load, the processes that send its weights from the memory in which they train.

    They do nothing else until the load has ended, so they wait for calls that its processes run before it. Weights that
    are copied first, in flight or through the object store, have no senders here.
    """
    waits, steps = dependencies(plan), {step.node: step for step in plan.steps}
    senders = {
        load: tuple(process for process in participants if process[0] != steps[load].group)
        for load, participants in exchanges(plan, waits).items()
    }
    for export, participants in broadcasts(plan, waits, planned_topology(plan).direct_groups).items():
        for step in plan.steps:
            if any(node == export for node, _ in columns_read(plan.graph, step.node)):
                senders[step.node] = participants[:1]
    return senders


@dataclass(frozen=True, slots=True)
class CopiedWeights:
    """A ``plan`` in which ``roles``, placed with ``transport``, send copies of weights, and wait for no reader."""

    plan: Plan
    roles: tuple[str, ...]
    transport: TransportName

    def __str__(self) -> str:
        placements = "placement" if len(self.roles) == 1 else "placements"
        return f'transport="{self.transport}" in the {placements} of {" and ".join(self.roles)}'


def with_copied_weights(plan: Plan) -> CopiedWeights | None:
    """The plan if all roles that send weights from the memory in which they train copied them; None without any.

    Copies go by CUDA IPC if all that the roles return can, which is what this transport requires, else through the
    object store.
    """
    roles_of = {step.node: step.role for step in plan.steps if step.role is not None}
    exports = {node for load in weight_senders(plan) for node, _ in columns_read(plan.graph, load)}
    roles = tuple(dict.fromkeys(roles_of[node] for node in sorted(exports)))
    if not roles:
        return None
    ways = {edge.transport for edge in plan.edges if roles_of.get(edge.source) in roles}
    transport: TransportName = "cuda ipc" if ways <= {"cuda ipc", "nccl", "in process"} else "object store"
    placements = plan.deployment.placements
    copying = {role: replace(placements[role], transport=transport) for role in roles}
    deployment = Deployment(**{**placements, **copying})
    stage_plans = tuple((stage, replace(of_stage, deployment=deployment)) for stage, of_stage in plan.stage_plans)
    return CopiedWeights(replace(plan, deployment=deployment, stage_plans=stage_plans), roles, transport)
