"""Meshes, pools and clusters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from hypothesis import strategies as st

from hfdsl.deploy.cluster import Cluster, Nodes
from hfdsl.deploy.pools import ResourcePool, roots
from hfdsl.protocols.mesh import AXES, Mesh
from hfdsl.testing.arguments import names_of, number_of, refused

ORDERS = tuple(permutations(AXES))


@st.composite
def meshes(
    draw: st.DrawFn, *, axes: str | Sequence[str] = AXES, max_world: int = 16, folds: bool = True, orders: bool = True
) -> Mesh:
    """Meshes of at most ``max_world`` ranks that are larger than 1 along ``axes`` alone.

    With ``folds`` generation may use smaller groups, with ``orders`` ranks may be numbered in any order of the axes.

    Raises:
        DefinitionError: HF921 for an unknown axis.

    >>> from hypothesis import find
    >>> str(find(meshes(axes=("dp", "tp")), lambda mesh: mesh.dp > 1 and mesh.tp > 1))
    'Mesh(pp=1 dp=2 tp=2)'
    """
    axes = names_of("meshes", "axes=", axes, AXES, "axis")
    remaining = number_of("meshes", "max_world=", max_world)
    sizes: dict[str, int] = dict.fromkeys(AXES, 1)
    for axis in draw(st.permutations(sorted(axes, reverse=True))):  # who is first has the most to choose from
        wide = draw(st.booleans())
        sizes[axis] = draw(st.integers(1, remaining if wide else max(1, round(remaining**0.5))))
        remaining //= sizes[axis]
    gen_pp, gen_tp = (draw(_divisors(sizes[axis])) if folds else None for axis in ("pp", "tp"))
    return Mesh(**sizes, gen_pp=gen_pp, gen_tp=gen_tp, order=draw(st.sampled_from(ORDERS)) if orders else AXES)


def _divisors(size: int) -> st.SearchStrategy[int | None]:
    return st.sampled_from([None, *(n for n in range(size, 0, -1) if size % n == 0)])


@st.composite
def pools(draw: st.DrawFn, ranks: int | None = None, *, use_gpu: bool = True, name: str = "pool") -> ResourcePool:
    """Pools of ``ranks`` slots (of 1 to 8): on one node or several, cut from a larger pool, or merged of two.

    Raises:
        DefinitionError: HF921 for ``ranks`` below 1.

    >>> from hypothesis import find
    >>> find(pools(3), lambda pool: len(pool.processes) == 2).world_size
    3
    """
    size = draw(st.integers(1, 8)) if ranks is None else number_of("pools", "ranks", ranks)
    kind = draw(st.sampled_from(["node", "nodes", "part", "merged"]))
    if kind == "node" or (size == 1 and kind != "part"):
        return ResourcePool([size], use_gpu, name)
    if kind == "part":
        before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        cut = [n for n in (before, size, after) if n]
        return ResourcePool([sum(cut)], use_gpu, name).split(cut)[int(before > 0)]
    first = draw(st.integers(1, size - 1))
    if kind == "nodes":
        return ResourcePool([first, size - first], use_gpu, name)
    first_part, second_part = (
        ResourcePool([first], use_gpu, f"{name}a"),
        ResourcePool([size - first], use_gpu, f"{name}b"),
    )
    return first_part.merge(second_part, name)


@st.composite
def clusters(draw: st.DrawFn, *held: ResourcePool) -> Cluster:
    """Clusters with room for all of these pools at once, each on its own nodes.

    >>> from hypothesis import find
    >>> str(find(clusters(ResourcePool([2, 2])), lambda cluster: True))
    '2 nodes of 2 GPUs (80 GiB) and 16 CPUs'
    """
    for pool in held:
        if not isinstance(pool, ResourcePool):
            raise refused("clusters", "held", "pools, each an hf.ResourcePool", pool)
    owners = dict.fromkeys(root for pool in held for root in roots(pool))
    kinds = []
    for owner in owners or {ResourcePool([1], name="pool"): None}:
        slots = max(owner.processes) + draw(st.integers(0, 2))
        gpus = {"gpus": slots, "gpu_memory_gib": draw(st.sampled_from([80, 24, 141]))} if owner.use_gpu else {}
        kinds.append(Nodes(len(owner.processes) + draw(st.integers(0, 2)), **gpus, cpus=8 * slots))
    return Cluster(*kinds)
