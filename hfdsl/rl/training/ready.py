"""The ready-made roles in a dataflow: whose constructor and whose methods are hfdsl's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hfdsl.graph.program import Graph, Node, RoleCall
from hfdsl.protocols.worker import Worker

READY_ROLES: Final = "hfdsl.rl.workers"
"""The package of the ready-made roles, whose learning methods each take one optimizer step."""


def is_ready_made(role: type[Worker]) -> bool:
    """Whether a role has the constructor of a ready-made role."""
    return getattr(role.__init__, "__module__", "").startswith(READY_ROLES)


def calls(graph: Graph, *names: str) -> Iterator[tuple[RoleCall, Node]]:
    """The calls of ready-made methods of these names."""
    for node in graph.nodes:
        op = node.op
        if (
            isinstance(op, RoleCall)
            and op.signature.name in names
            and op.signature.body.__module__.startswith(READY_ROLES)
        ):
            yield op, node


def generating(graph: Graph) -> list[str]:
    """The roles that generate with a ready-made method."""
    return list(dict.fromkeys(op.role for op, _ in calls(graph, "generate")))
