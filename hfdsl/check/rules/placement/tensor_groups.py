"""Tensor-parallel groups: are their ranks on one node?"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any

from hfdsl.check.capacity import shape
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import placing, works
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.placement.classes import spelled
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.pools import ResourcePool, node_runs, slot_ranges
from hfdsl.protocols.mesh import Mesh
from hfdsl.types.numbers import divisors

MOST_NAMED = 4
"""The number of ranks of a group that a message names if they are not consecutive."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor-parallel group that is known to cross nodes: its ranks, and the first rank of a node among them."""

    ranks: range
    boundary: int

    @property
    def ranks_in_words(self) -> str:
        """The ranks in words: consecutive ones by their ends."""
        if self.ranks.step == 1:
            return f"{self.ranks[0]} to {self.ranks[-1]}"
        first = [str(rank) for rank in self.ranks[:MOST_NAMED]]
        return f"{', '.join(first)}{', ...' if len(self.ranks) > MOST_NAMED else ''}"


def tensor_groups_stay(context: Context) -> Iterator[Finding]:
    """The ranks of a tensor-parallel group, which communicate in every layer, are on one node of their pool."""
    for name, placement, crossing in crossings(context):
        mesh, pool = placement.mesh, placement.pool
        order = "" if crossing.ranks.step == 1 else f" of the order {mesh.order}"
        finding = Finding(
            "HF503",
            f"role '{name}': a tensor-parallel group crosses nodes: ranks {crossing.ranks_in_words} are "
            f"one group{order}, and pool '{pool.name}' {shape(pool.processes)} has a node boundary after rank "
            f"{crossing.boundary - 1}",
            Label(placement.span, f"tp = {mesh.tp}"),
            notes=("if nodes link their GPUs like those of one node, describe the cluster: hf.Nodes(..., domain=...)",),
        )
        yield with_suggestions(
            context, finding, chain(_reordered(context, name, placement), _narrower(context, name, placement)), most=1
        )


def crossings(context: Context) -> Iterator[tuple[str, Placement[Any], Crossing]]:
    """The roles with a group that is known to cross nodes."""
    for name, placement in context.program.placements.items():
        crossing = _crossing(context, placement)
        if crossing is not None:
            yield name, placement, crossing


def _reordered(context: Context, name: str, placement: Placement[Any]) -> Iterator[Suggestion]:
    """The mesh with tp innermost, where its groups then stay on a node."""
    mesh = placement.mesh
    if _stride(mesh) > 1:
        others = tuple(axis for axis in mesh.order if axis != "tp")
        reordered = replace(placement, mesh=replace(mesh, order=(*others, "tp")))
        if _crossing(context, reordered) is None and works(context, {name: reordered}):
            text = f"number the ranks of a group one after another: {spelled(reordered.mesh)}"
            yield placing(text, {name: reordered})


def _narrower(context: Context, name: str, placement: Placement[Any]) -> Iterator[Suggestion]:
    """The widest groups that stay on a node, with dp to fill the pool; the first that works is suggested."""
    mesh = placement.mesh
    for size in reversed(divisors(mesh.tp)[1:-1]):
        if size % (mesh.gen_tp or 1) == 0:
            narrow_mesh = replace(mesh, tp=size, dp=mesh.dp * (mesh.tp // size))
            narrow = replace(placement, mesh=narrow_mesh)
            # a finding that another split would have as well counts, too
            if _stride(narrow_mesh) == 1 and works(context, {name: narrow}):
                text = f"if a GPU can hold 1/{size} of a layer, use {spelled(narrow_mesh)}: its groups stay on a node"
                yield placing(text, {name: narrow})


def _crossing(context: Context, placement: Placement[Any]) -> Crossing | None:
    """The first group that is known to cross nodes.

    The ranks of a group are ``stride`` apart, and its block, in which groups with the same other coordinates alternate,
    is ``tp * stride`` ranks long. So a node that ends within a block cuts every group that has ranks on both sides.
    Nodes of one pool are different nodes; nodes of merged pools may be the same. Groups of generation are parts of
    these groups.
    """
    mesh, pool, tp = placement.mesh, placement.pool, placement.mesh.tp
    if tp == 1 or not pool.use_gpu or mesh.world_size != pool.world_size or _linked(context.cluster):
        return None
    stride = _stride(mesh)
    if stride > 1 and context.cluster is None:
        return None  # this order is the user's choice, and the nodes may be linked
    block = tp * stride
    if all(
        slots.start % block == slots.stop % block == 0 and not any(n % block for n in set(root.processes))
        for root, slots in slot_ranges(pool)
    ):
        return None  # every node ends with a block: no need to look at each of them, which may be thousands
    nodes = _Nodes(pool)
    boundary = nodes.end_of(0)
    while boundary < pool.world_size:
        start = boundary - boundary % block
        before = boundary - 1 if boundary - 1 + stride < start + block else boundary - stride
        if boundary > start:
            left, right = nodes.at(before), nodes.at(before + stride)
            if left[0] == right[0] and left[1] != right[1]:
                return Crossing(range(start + (before - start) % stride, start + block, stride), boundary)
        boundary = nodes.end_of(boundary)
    return None


class _Nodes:
    """The nodes of a pool by rank, computed lazily, since there may be thousands."""

    def __init__(self, pool: ResourcePool) -> None:
        self.unread = node_runs(pool)
        self.nodes: list[tuple[str, int]] = []
        self.ends: list[int] = []

    def _index(self, rank: int) -> int:
        while not self.ends or self.ends[-1] <= rank:
            root, node, slots = next(self.unread)
            self.nodes.append((root.name, node))
            self.ends.append((self.ends[-1] if self.ends else 0) + slots)
        return bisect_right(self.ends, rank)

    def at(self, rank: int) -> tuple[str, int]:
        """The owning pool of a rank, and the number of its node there."""
        return self.nodes[self._index(rank)]

    def end_of(self, rank: int) -> int:
        """The first rank after the node of a rank."""
        return self.ends[self._index(rank)]


def _stride(mesh: Mesh) -> int:
    """The rank stride between neighbors of a tensor-parallel group: 1 where tp is the innermost axis."""
    return prod(getattr(mesh, axis) for axis in mesh.order[mesh.order.index("tp") + 1 :])


def _linked(cluster: Cluster | None) -> bool:
    """Whether GPUs of several nodes may be as close as those of one."""
    return cluster is not None and (
        any(kind.domain > 1 for kind in cluster.kinds) or sum(kind.count for kind in cluster.kinds if kind.gpus) == 1
    )
