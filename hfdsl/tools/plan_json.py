"""Plans for machines: what ``hfdsl plan --format json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfdsl.deploy.retries import Retries
from hfdsl.graph.program import RoleCall
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.concurrency import calls_at_once
from hfdsl.plan.copies import pool_copies
from hfdsl.plan.memory import ProcessMemory
from hfdsl.plan.plan import Edge, Step
from hfdsl.plan.versions import tokens_have_versions
from hfdsl.protocols import role_facts
from hfdsl.tools.command_target import CommandTarget


def plans_as_dict(target: CommandTarget, plans: Sequence[CompiledPlan]) -> dict[str, Any]:
    """The plan of a target; of a run whose steps are rounds and an update, both."""
    then = {} if target.rounds is None else {"rounds": target.rounds.as_dict(), "update": plan_as_dict(plans[1])}
    copies = {} if target.retries is None else {"copies": copies_as_dict(plans[0], target.retries)}
    return {"plan": plan_as_dict(plans[0]), **then, **copies}


def copies_as_dict(plan: CompiledPlan, retries: Retries) -> dict[str, Any]:
    """The copies of states that a run keeps, with the bytes of one on the fullest node of each pool."""
    pools = [
        {
            "pool": pool.pool.name,
            "bytes": pool.bytes,
            "peer_bytes": pool.peer_bytes,
            "unknown": list(pool.unknown),
        }
        for pool in pool_copies(plan, retries)
    ]
    return {"every": retries.every, "copies": retries.copies, "pools": pools}


def plan_as_dict(compiled: CompiledPlan) -> dict[str, Any]:
    """A plan for machines."""

    def step_as_dict(step: Step) -> dict[str, Any]:
        registration, op = step.signature.registration, compiled.node(step.node).op
        return {
            "node": step.node,
            "label": step.label,
            "stage": step.level,
            "group": step.group,
            "ranks": list(step.ranks),
            "protocol": registration.name if registration else None,
            "chunks": step.chunks,
            **({"during": op.during} if isinstance(op, RoleCall) and op.during else {}),
            **({"at_once": calls} if (calls := calls_at_once(compiled, step)) > 1 else {}),
        }

    def lags_of(edge: Edge) -> dict[str, int]:
        late = compiled.read_lags[edge.source, edge.target]
        return {f"{state.role}.{state.state}": lag for state, lag in late.items()}

    def edge_as_dict(edge: Edge) -> dict[str, Any]:
        return {
            "source": edge.source,
            "target": edge.target,
            "columns": [column for column in edge.columns if column],
            "bytes": edge.bytes,
            "moved": edge.moved,
            "transport": edge.transport,
            **({"lags": lags_of(edge)} if (edge.source, edge.target) in compiled.read_lags else {}),
            **({"versions_per_token": True} if tokens_have_versions(compiled.graph, edge.source) else {}),
        }

    def memory_as_dict(peak: ProcessMemory) -> dict[str, Any]:
        return {"group": peak.process[0], "rank": peak.process[1], "bytes": peak.bytes, "step": peak.step}

    return {
        "name": compiled.name,
        "dims": {dim.__name__: size for dim, size in compiled.dims.items()},
        "processes": [
            {
                "group": group.name,
                "pool": group.pool.name,
                "nodes": list(group.pool.processes),
                "gpu": group.pool.use_gpu,
                "roles": {name: str(compiled.mesh(name)) for name in group.roles},
            }
            for group in compiled.groups
        ],
        "engines": {
            name: engine
            for name, place in compiled.deployment.placements.items()
            if (engine := role_facts.samples_with.of(place))
        },
        "inputs": {node.label: node.id for node in compiled.graph.inputs},
        "steps": [step_as_dict(step) for step in compiled.steps],
        "edges": [edge_as_dict(edge) for edge in compiled.edges],
        "memory": [memory_as_dict(peak) for peak in compiled.peaks],
        "syncs": [sync.as_dict() for sync in compiled.syncs],
    }
