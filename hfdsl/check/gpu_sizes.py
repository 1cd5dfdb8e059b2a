"""GPU sizes: the smallest and the largest GPU that a pool may get on a heterogeneous cluster."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.pools import ResourcePool
from hfdsl.protocols.bin_packing import Amounts, fits
from hfdsl.types.dims import Answer

Bounds: TypeAlias = tuple[Fraction | None, Fraction | None]


@lru_cache(maxsize=256)
def gpu_sizes(cluster: Cluster | None, pool: ResourcePool, slots: range) -> Bounds:
    """The memory of the smallest GPU that one of these slots may get, and the largest that all of them may get.

    Both in GiB. Slots may get any GPUs that leave room for the other nodes of the pool with such slots; if the pool
    does not fit at all, those that hold its widest node. None if none do, or if no cluster is described.

    >>> import hfdsl as hf
    >>> large, small = (hf.Nodes(n, gpus=8, gpu_memory_gib=gib, cpus=96) for n, gib in [(1, 80), (9, 40)])
    >>> mixed = hf.Cluster(large, small)
    >>> [int(size) for size in gpu_sizes(mixed, hf.ResourcePool([8]), range(8))]
    [40, 80]
    >>> [int(size) for size in gpu_sizes(mixed, hf.ResourcePool([8, 8]), range(16))]  # one is on a small node
    [40, 40]
    """
    ends = list(accumulate(pool.processes))
    widths = Counter(pool.processes[bisect_right(ends, slots.start) : bisect_left(ends, slots.stop) + 1])
    parts: dict[Amounts, int] = {(width,): count for width, count in widths.items()}
    kinds = [(kind, Fraction(kind.gpu_memory_gib)) for kind in cluster.kinds if kind.gpu_memory_gib] if cluster else []

    def have_room(least: Fraction) -> bool:
        """Whether all slots can be on GPUs of at least this size."""
        nodes = Counter[Amounts]()
        for kind, size in kinds:
            if size >= least:
                nodes[kind.gpus,] += kind.count
        return fits(parts, nodes) is not Answer.REFUTED

    # Where all have room, they have it with the narrowest of them on any node that takes it.
    smallest = [size for kind, size in kinds if kind.gpus >= min(widths)]
    largest = [size for size in set(smallest) if have_room(size)]
    if not largest:
        smallest = largest = [size for kind, size in kinds if kind.gpus >= max(widths)]
    return min(smallest, default=None), max(largest, default=None)
