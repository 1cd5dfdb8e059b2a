"""Transports: can the values of a role be sent by the transport that its placement names?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.queues.followed_queues import surely_decides
from hfdsl.deploy.deployment import ProcessGroup, process_groups
from hfdsl.deploy.pools import node_runs
from hfdsl.graph.columns import columns_read
from hfdsl.graph.program import RoleCall
from hfdsl.protocols.dispatch import Functions

QUEUED: Final = "it reads from a dynamic queue, whose rows wait in the object store"
"""Why rows behind a queue have no direct way."""


def transports_reach(context: Context) -> Iterator[Finding]:
    """A role that sends by CUDA IPC has GPUs, and so do its readers, on the same node.

    For each role the first reader that cannot be reached is reported.
    """
    if context.program.deployment is None:
        return
    groups = {role: group for group in process_groups(context.program.deployment) for role in group.roles}
    for name, placement in context.program.deployment.placements.items():
        if placement.transport != "cuda ipc":
            continue
        if not placement.pool.use_gpu:
            yield Finding(
                "HF524",
                f"role '{name}' sends by CUDA IPC, which is from GPU to GPU, but pool '{placement.pool.name}' has none",
                Label(placement.span, 'transport="cuda ipc"'),
                notes=("leave out transport=: values then go directly where they can",),
            )
            continue
        for reader, queued in _readers(context, name):
            why = QUEUED if queued else _unreachable(groups[name], groups[reader])
            if why is not None:
                yield Finding(
                    "HF524",
                    f"role '{name}' sends by CUDA IPC, which does not reach '{reader}': {why}",
                    Label(placement.span, 'transport="cuda ipc"'),
                    (Label(context.program.deployment[reader].span, f"'{reader}' reads what '{name}' returns"),),
                    notes=("leave out transport=: each reader then uses a transport that reaches it",),
                )
                break


def _readers(context: Context, name: str) -> Iterator[tuple[str, bool]]:
    """The roles with a method that takes what a role makes, and whether that comes from a dynamic queue.

    A pair of functions receives it in the driver.
    """
    nodes, readers = context.program.graph.nodes, dict[tuple[str, bool], None]()
    split, decides = context.program.split, surely_decides(context)
    for node in nodes:
        if not isinstance(node.op, RoleCall) or context.program.placement(node) is None or _by_functions(node.op):
            continue
        for source, _ in columns_read(context.program.graph, node.id):
            producer = nodes[source].op
            if isinstance(producer, RoleCall) and producer.role == name and not _by_functions(producer):
                readers[node.op.role, decides and split.of[source] != split.of[node.id]] = None
    yield from readers


def _by_functions(op: RoleCall) -> bool:
    registration = op.signature.registration
    return registration is None or isinstance(registration.meaning, Functions)


def _unreachable(producer: ProcessGroup, reader: ProcessGroup) -> str | None:
    """Why a value of the producer's processes cannot reach the reader's; None if it can."""
    if not reader.pool.use_gpu:
        return f"its pool '{reader.pool.name}' has no GPUs"
    from_nodes, to_nodes = (
        frozenset((root.name, node) for root, node, _ in node_runs(pool)) for pool in (producer.pool, reader.pool)
    )
    if {root for root, _ in from_nodes} == {root for root, _ in to_nodes} and not from_nodes & to_nodes:
        return "it is on other nodes, and CUDA IPC only works between processes of one node"
    return None
