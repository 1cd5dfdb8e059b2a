"""Transports: what goes from process to process without the object store, and how, as far as pools tell."""

from __future__ import annotations

from collections.abc import Iterable

from hfdsl.deploy.pools import devices
from hfdsl.graph.program import RoleCall
from hfdsl.plan.parcels import Process
from hfdsl.plan.plan import Plan, Transport


def goes_direct(plan: Plan, linked: frozenset[str], node: int, reader: str) -> bool:
    """Whether what a node makes goes to other processes of a group without the object store."""
    op = plan.node(node).op
    kept_out = isinstance(op, RoleCall) and plan.deployment[op.role].transport == "object store"
    return plan.optimize.direct and not kept_out and reader in linked and plan.layouts[node].group in linked


def between(plan: Plan, pairs: Iterable[tuple[Process, Process]]) -> Transport:
    """What carries values between these processes of GPU pools: NCCL as soon as it carries some of them."""
    slots = {group.name: devices(group.pool) for group in plan.groups}
    one_gpu = all(slots[one[0]][one[1]] == slots[other[0]][other[1]] for one, other in pairs)
    return "cuda ipc" if one_gpu else "nccl"
