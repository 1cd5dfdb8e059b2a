"""GPU sizes: how small and how large the GPUs are that slots of a pool may get, where nodes differ."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.packing import Amounts, fits
from hfdsl.deploy.pools import ResourcePool
from hfdsl.types.dims import Answer

Bounds: TypeAlias = tuple[Fraction | None, Fraction | None]


@lru_cache(maxsize=256)
def gpu_sizes(cluster: Cluster | None, pool: ResourcePool, slots: tuple[int, int]) -> Bounds:
    """The memory of the smallest GPU that one of these slots may get, and the largest that all of them may get.

    Both in GiB. Slots may get what leaves room for every node of the pool that has such slots; of a pool that has no
    room at all, what takes its widest node. None where nothing does, or no cluster is described.

    >>> import hfdsl as hf
    >>> large, small = (hf.Nodes(n, gpus=8, gpu_memory_gib=gib, cpus=96) for n, gib in [(1, 80), (9, 40)])
    >>> mixed = hf.Cluster(large, small)
    >>> [int(size) for size in gpu_sizes(mixed, hf.ResourcePool([8]), (0, 8))]
    [40, 80]
    >>> [int(size) for size in gpu_sizes(mixed, hf.ResourcePool([8, 8]), (0, 16))]  # one of the two is on a small node
    [40, 40]
    """
    ends, (low, high) = list(accumulate(pool.processes)), slots
    parts = Counter(pool.processes[bisect_right(ends, low) : bisect_left(ends, high) + 1])
    kinds = {kind: Fraction(kind.gpu_memory_gib) for kind in cluster.kinds if kind.gpu_memory_gib} if cluster else {}
    sizes = sorted({size for kind, size in kinds.items() if kind.gpus >= min(parts)})

    def may(chosen: Counter[int], there: Collection[Fraction]) -> bool:
        """Whether all may have room where the chosen ones get GPUs of these sizes."""
        nodes, asked = Counter[Amounts](), Counter[Amounts]()
        for kind, size in kinds.items():
            nodes[kind.gpus, kind.gpus if size in there else 0] += kind.count
        for width, count in parts.items():
            asked[width, width] += chosen[width]
            asked[width, 0] += count - chosen[width]
        return fits(+asked, nodes) is not Answer.REFUTED

    one_of = [Counter([width]) for width in parts]
    smallest = [size for i, size in enumerate(sizes) if any(may(one, sizes[: i + 1]) for one in one_of)]
    largest = [size for i, size in enumerate(sizes) if may(parts, sizes[i:])]
    alone = [size for kind, size in kinds.items() if kind.gpus >= max(parts)]
    return min(smallest or alone, default=None), max(largest or alone, default=None)
