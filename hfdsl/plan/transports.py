"""Transports: what goes from process to process without the object store, as far as pools and optimisations tell."""

from __future__ import annotations

from hfdsl.graph.program import RoleCall
from hfdsl.plan.plan import Plan


def goes_direct(plan: Plan, linked: frozenset[str], node: int, reader: str) -> bool:
    """Whether what a node makes goes to other processes of a group without the object store, if these are reached."""
    op = plan.node(node).op
    kept_out = isinstance(op, RoleCall) and plan.deployment[op.role].transport == "object store"
    return plan.optimize.direct and not kept_out and reader in linked and plan.layouts[node].group in linked


def keeps_mapped(plan: Plan) -> bool:
    """Whether readers keep mapped what they have read of other GPUs: not where roles are to give memory back."""
    return plan.optimize.mappings and not plan.offloads
