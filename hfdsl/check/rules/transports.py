"""Transports: can what a role makes go the way that its place says?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfdsl.check.findings import Finding, Label
from hfdsl.check.subject import Subject
from hfdsl.deploy.deployment import Placement, ProcessGroup, process_groups
from hfdsl.deploy.pools import devices
from hfdsl.graph.columns import columns_read
from hfdsl.graph.program import RoleCall
from hfdsl.protocols.dispatch import Functions

WAYS = {"nccl": "NCCL", "cuda ipc": "CUDA IPC"}


def transports_reach(subject: Subject) -> Iterator[Finding]:
    """A role that sends by NCCL or CUDA IPC has GPUs, as have those who read what it makes, and on the right GPUs.

    Of each role the first reader that cannot be reached is told.
    """
    if subject.deployment is None:
        return
    groups = {role: group for group in process_groups(subject.deployment) for role in group.roles}
    for name, placement in subject.deployment.placements.items():
        if placement.transport is None or placement.transport not in WAYS:
            continue
        if not placement.pool.use_gpu:
            yield Finding(
                "HF524",
                f"role '{name}' sends by {WAYS[placement.transport]}, which is from GPU to GPU, and pool "
                f"'{placement.pool.name}' has none",
                Label(placement.span, f'transport="{placement.transport}"'),
                notes=("leave transport= out: what can go directly does",),
            )
            continue
        for reader in _readers(subject, name):
            why = _unreachable(placement, groups[name], groups[reader])
            if why is not None:
                yield Finding(
                    "HF524",
                    f"role '{name}' sends by {WAYS[placement.transport]}, which does not reach '{reader}': {why}",
                    Label(placement.span, f'transport="{placement.transport}"'),
                    (Label(subject.deployment[reader].span, f"'{reader}' reads what '{name}' makes"),),
                    notes=("leave transport= out: each reader is reached by what can reach it",),
                )
                break


def _readers(subject: Subject, name: str) -> Iterator[str]:
    """The roles with a method that takes what a role makes; a pair of functions gets it in the driver."""
    nodes, found = subject.graph.nodes, dict[str, None]()
    for node in nodes:
        if not isinstance(node.op, RoleCall) or subject.placement(node) is None or _by_functions(node.op):
            continue
        makers = (nodes[made].op for made, _ in columns_read(subject.graph, node.id))
        if any(isinstance(maker, RoleCall) and maker.role == name and not _by_functions(maker) for maker in makers):
            found[node.op.role] = None
    yield from found


def _by_functions(op: RoleCall) -> bool:
    registration = op.signature.registration
    return registration is None or isinstance(registration.meaning, Functions)


def _unreachable(placement: Placement[Any], maker: ProcessGroup, reader: ProcessGroup) -> str | None:
    """Why what leaves the maker's processes cannot come to the reader's; None where it may."""
    if reader == maker:
        return None
    if not reader.pool.use_gpu:
        return f"its pool '{reader.pool.name}' has no GPUs"
    shared = set(devices(maker.pool)) & set(devices(reader.pool))
    if placement.transport == "nccl" and shared:
        return "it has processes of its own on the same GPUs, and NCCL joins no two processes of one GPU"
    if placement.transport == "cuda ipc" and not shared:
        return "it has other GPUs, and CUDA IPC is between processes of one GPU"
    return None
