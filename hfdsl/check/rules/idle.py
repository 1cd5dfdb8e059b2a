"""Idle roles: is every role that has a place called?"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding, Label
from hfdsl.check.subject import Subject
from hfdsl.graph.program import RoleCall


def placed_roles_are_called(subject: Subject) -> Iterator[Finding]:
    """A role that the dataflow takes and never calls: its processes start and load their weights all the same.

    Another dataflow of the same deployment may call it, hence a warning.
    """
    if subject.deployment is None or subject.graph.misuses:  # a call that was not understood may be the one
        return
    called = {node.op.role for node in subject.graph.nodes if isinstance(node.op, RoleCall)}
    for name, role in subject.graph.roles.items():
        if name in called or name not in subject.deployment.placements:
            continue
        placement = subject.deployment[name]
        pool, ranks = placement.pool, placement.mesh.world_size
        what = "GPU" if pool.use_gpu else "slot"
        yield Finding(
            "HF509",
            f"role '{name}' is placed on {ranks} {what}{'s' * (ranks != 1)} of pool '{pool.name}', and "
            f"'{subject.graph.name}' never calls it: unless another dataflow of the deployment does, its processes "
            "start and load their weights for nothing",
            Label(placement.span),
            (Label(subject.graph.span, f"takes '{name}: {role.__name__}'"),),
            notes=("call it, or remove the parameter and the place",),
        )
