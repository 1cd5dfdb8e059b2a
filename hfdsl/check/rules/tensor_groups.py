"""Tensor-parallel groups: are their ranks on one node?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from hfdsl.check.capacity import shape
from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import moved, works
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.classes import spelled
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.pools import node_runs, stretches
from hfdsl.protocols.mesh import Mesh


def tensor_groups_stay(context: Context) -> Iterator[Finding]:
    """The ranks of a tensor-parallel group, which communicate in every layer, are on one node of their pool."""
    for name, placement, first, before in crossings(context):
        tp, pool = placement.mesh.tp, placement.pool
        finding = Finding(
            "HF503",
            f"role '{name}': a tensor-parallel group crosses nodes: ranks {first} to {first + tp - 1} are one group, "
            f"and pool '{pool.name}' {shape(pool.processes)} ends a node after rank {first + before - 1}",
            Label(placement.span, f"tp = {tp}"),
            notes=(
                "for nodes whose GPUs are linked as one node's are, describe the cluster: hf.Nodes(..., domain=...)",
            ),
        )
        yield with_suggestions(context, finding, _narrower(context, name, placement), most=1)


def crossings(context: Context) -> Iterator[tuple[str, Placement[Any], int, int]]:
    """The roles with a group that is known to cross nodes: its first rank, and how many of its ranks one node has."""
    for name, placement in context.program.deployment.placements.items() if context.program.deployment else ():
        crossing = _crossing(context, placement)
        if crossing is not None:
            yield name, placement, *crossing


def _narrower(context: Context, name: str, placement: Placement[Any]) -> Iterator[Suggestion]:
    """The widest groups that stay on a node, with dp to fill the pool; the first that works is suggested."""
    mesh = placement.mesh
    for size in reversed(range(2, mesh.tp)):
        if mesh.tp % size == 0 and size % (mesh.gen_tp or 1) == 0:
            other = replace(mesh, tp=size, dp=mesh.dp * (mesh.tp // size))
            narrow = replace(placement, mesh=other)
            if _runs(other) and works(context, {name: narrow}):  # what another split breaks anyway counts too
                text = f"where a GPU holds 1/{size} of a layer, use {spelled(other)}: its groups stay on a node"
                yield Suggestion((Change(text, partial(moved, {name: narrow})),))


def _crossing(context: Context, placement: Placement[Any]) -> tuple[int, int] | None:
    """The first group that is known to cross nodes, as ``crossings`` has it.

    None if the user orders the axes such that a group is not a range of ranks: that layout is deliberate. Nodes of one
    pool are different nodes; nodes of merged pools may be the same.
    """
    mesh, pool, tp = placement.mesh, placement.pool, placement.mesh.tp
    if not _runs(mesh) or not pool.use_gpu or mesh.world_size != pool.world_size or _linked(context.cluster):
        return None
    if all(
        first % tp == end % tp == 0 and not any(n % tp for n in set(r.processes)) for r, first, end in stretches(pool)
    ):
        return None  # every node ends with a group: no need to look at each of them, which may be thousands
    runs = [(root.name, node, slots) for root, node, slots in node_runs(pool)]
    rank = 0
    for here, after in pairwise(runs):
        rank += here[2]
        if rank % tp and here[0] == after[0] and here[1] != after[1]:
            return rank - rank % tp, rank % tp
    return None


def _runs(mesh: Mesh) -> bool:
    """Whether the ranks of a tensor-parallel group follow each other."""
    return all(getattr(mesh, axis) == 1 for axis in mesh.order[mesh.order.index("tp") + 1 :])


def _linked(cluster: Cluster | None) -> bool:
    """Whether GPUs of several nodes may be as close as those of one."""
    return cluster is not None and (
        any(kind.domain > 1 for kind in cluster.kinds) or sum(kind.count for kind in cluster.kinds if kind.gpus) == 1
    )
