"""Resource pools: process slots on nodes, held by Ray placement groups."""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import WeakSet

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from hfdsl.errors import ResourceError
from hfdsl.protocols.worker import CPU_PER_PROCESS, PROCESSES_PER_SLOT
from hfdsl.single_controller.cluster import cannot_hold, check_cluster
from hfdsl.single_controller.interrupts import delayed_interrupts
from hfdsl.single_controller.ray_versions import check_version
from hfdsl.types.numbers import brief, count_range, is_count

PLACEMENT_SECONDS = 60.0
"""The seconds that a pool waits for a cluster that is large enough but busy."""


@dataclass(eq=False)
class PoolNode:
    """The slots of a pool on one node: one placement group, one bundle per slot."""

    size: int
    name: str
    group: PlacementGroup | None = None
    users: dict[int, WeakSet[Any]] = field(default_factory=dict)

    @property
    def placed(self) -> PlacementGroup:
        """The placement group; HF507 before the pool is placed, and after its shutdown."""
        if self.group is None:
            raise ResourceError("HF507", f"the slots of {self.name} are not held; place() the pool")
        return self.group


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one rank of every group on the pool: a bundle of a node."""

    node: PoolNode
    bundle: int

    @property
    def users(self) -> WeakSet[Any]:
        """The worker groups that have a process here now."""
        return self.node.users.setdefault(self.bundle, WeakSet())


class RayResourcePool:
    """Process slots on nodes, such as ``[4, 4]`` for four on each of two; several worker groups may share the slots.

    A slot is one GPU (or none with ``use_gpu=False``) and little CPU, shared by at most ``max_colocate_count`` groups.
    The first group, or ``place()``, requests them from Ray. A ``detached`` pool outlives the driver.

    Raises ``ResourceError``: HF501 for invalid sizes; on placing, HF502 (GPUs) or HF505 (CPUs) if the cluster cannot
    hold the pool, immediately if that is certain, otherwise after ``timeout`` seconds.
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int],
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = PROCESSES_PER_SLOT,
        detached: bool = False,
        *,
        timeout: float = PLACEMENT_SECONDS,
    ) -> None:
        sizes = list(process_on_nodes) if isinstance(process_on_nodes, (list, tuple)) else []
        if not sizes or not all(is_count(size) for size in sizes):
            raise ResourceError(
                "HF501",
                f"a pool lists the processes on each node, such as [4] or [4, 4]; got {brief(process_on_nodes)}",
            )
        if not is_count(max_colocate_count):
            raise ResourceError(
                "HF501",
                f"max_colocate_count is {count_range(max_colocate_count)}, got {brief(max_colocate_count)}",
            )
        self.use_gpu = use_gpu
        self.max_colocate_count = max_colocate_count
        self.detached = detached
        self.name_prefix = name_prefix or secrets.token_hex(3)
        self.timeout = timeout
        nodes = [PoolNode(size, f"{self.name_prefix}_pool:{index}") for index, size in enumerate(sizes)]
        self.slots: tuple[Slot, ...] = tuple(Slot(node, bundle) for node in nodes for bundle in range(node.size))

    @property
    def nodes(self) -> tuple[PoolNode, ...]:
        """The nodes that the pool has slots on, in rank order."""
        return tuple(dict.fromkeys(slot.node for slot in self.slots))

    @property
    def world_size(self) -> int:
        """The number of slots, which is the number of ranks of every group on the pool."""
        return len(self.slots)

    @property
    def store(self) -> list[int]:
        """The number of slots on each node."""
        return list(Counter(slot.node for slot in self.slots).values())

    def local_world_size_list(self) -> list[int]:
        """For every rank, the number of ranks on its node."""
        on_node = Counter(slot.node for slot in self.slots)
        return [on_node[slot.node] for slot in self.slots]

    def local_rank_list(self) -> list[int]:
        """For every rank, its number among the ranks on its node."""
        ranks_on_node: Counter[PoolNode] = Counter()
        ranks = []
        for slot in self.slots:
            ranks.append(ranks_on_node[slot.node])
            ranks_on_node[slot.node] += 1
        return ranks

    def node_index_list(self) -> list[int]:
        """For every rank, the number of its node in the pool."""
        index = {node: number for number, node in enumerate(self.nodes)}
        return [index[slot.node] for slot in self.slots]

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that a slot requests from Ray."""
        cpus = {"CPU": round(CPU_PER_PROCESS * self.max_colocate_count, 4)}
        return {**cpus, "GPU": 1.0} if self.use_gpu else cpus

    @property
    def process_share(self) -> dict[str, float]:
        """The resources that a worker process takes from its slot."""
        # Rounded down to Ray's resolution, since the last group would not fit otherwise.
        share = math.floor(10_000 / self.max_colocate_count) / 10_000
        return {"num_cpus": CPU_PER_PROCESS, "num_gpus": share if self.use_gpu else 0}

    def get_placement_groups(self) -> list[PlacementGroup]:
        """The placement groups of the nodes, placed now if they are not yet; errors as for the class."""
        self.place()
        return [node.placed for node in self.nodes]

    def place(self) -> None:
        """Hold the pool's slots in the cluster; do nothing if they are held."""
        missing = [node for node in self.nodes if node.group is None]
        if not missing:
            return
        check_version()
        if not ray.is_initialized():
            with delayed_interrupts():
                ray.init()
        label = f"pool {self}"
        check_cluster([node.size for node in missing], self.bundle, label)
        lifetime = "detached" if self.detached else None
        groups = [
            placement_group([self.bundle] * node.size, strategy="STRICT_PACK", name=node.name, lifetime=lifetime)
            for node in missing
        ]
        ready = [group.ready() for group in groups]
        try:
            placed, _ = ray.wait(ready, num_returns=len(ready), timeout=self.timeout)
        except BaseException:
            _remove(groups)
            raise
        if len(placed) < len(ready):
            _remove(groups)
            raise cannot_hold([node.size for node in missing], self.bundle, label, waited=self.timeout)
        for node, group in zip(missing, groups, strict=True):
            node.group = group

    def shutdown(self) -> None:
        """Release the slots and end the processes on them; pools that share the slots lose them too."""
        _remove([node.group for node in self.nodes if node.group is not None])
        for node in self.nodes:
            node.group = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __str__(self) -> str:
        return f"{self.name_prefix!r} {self.store}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store}, use_gpu={self.use_gpu}, name_prefix={self.name_prefix!r})"

    def view(self, slots: Sequence[Slot], name: str) -> RayResourcePool:
        """A pool of the same kind over some slots of this or other pools."""
        pool = RayResourcePool([1], self.use_gpu, name, self.max_colocate_count, self.detached, timeout=self.timeout)
        pool.slots = tuple(slots)
        return pool


def merge_resource_pool(rp1: RayResourcePool, rp2: RayResourcePool) -> RayResourcePool:
    """A pool over the slots of both, the first one's ranks first; its groups share devices with those of both.

    Raises ``ResourceError`` (HF501) for pools of different kinds or with slots in common.

    >>> first, second = RayResourcePool([2], use_gpu=False), RayResourcePool([3], use_gpu=False)
    >>> merge_resource_pool(first, second).world_size
    5
    """
    for attribute in ("use_gpu", "max_colocate_count", "detached"):
        first, second = getattr(rp1, attribute), getattr(rp2, attribute)
        if first != second:
            raise ResourceError("HF501", f"pools {rp1} and {rp2} cannot be merged: {attribute} is {first} and {second}")
    if set(rp1.slots) & set(rp2.slots):
        raise ResourceError("HF501", f"pools {rp1} and {rp2} cannot be merged: they have slots in common")
    return rp1.view(rp1.slots + rp2.slots, f"{rp1.name_prefix}_{rp2.name_prefix}")


def split_resource_pool(resource_pool: RayResourcePool, split_size: int | Sequence[int]) -> list[RayResourcePool]:
    """Pools over parts of a pool's slots: equal parts of ``split_size`` slots, or parts of the listed sizes.

    Raises ``ResourceError`` (HF501) for sizes that do not use every slot exactly once.

    >>> pool = RayResourcePool([4], use_gpu=False)
    >>> [part.world_size for part in split_resource_pool(pool, [1, 3])]
    [1, 3]
    """
    slots = resource_pool.world_size
    if isinstance(split_size, int) and is_count(split_size):
        sizes = [split_size] * (slots // split_size) if slots % split_size == 0 else []
    else:
        sizes = list(split_size) if isinstance(split_size, (list, tuple)) else []
    if not sizes or not all(is_count(size) for size in sizes) or sum(sizes) != slots:
        raise ResourceError(
            "HF501",
            f"pool {resource_pool} of {slots} slots cannot be split by {brief(split_size)}: "
            f"give a size that divides {slots}, or sizes that add up to it",
        )
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [
        resource_pool.view(resource_pool.slots[start : start + size], f"{resource_pool.name_prefix}_{start}")
        for start, size in zip(starts, sizes, strict=True)
    ]


def _remove(groups: Sequence[PlacementGroup]) -> None:
    """Remove placement groups, and wait for Ray to confirm it, so that the next pool finds their room."""
    for group in groups:
        remove_placement_group(group)
    deadline = time.monotonic() + 10
    while any(placement_group_table(group).get("state") not in (None, "REMOVED") for group in groups):
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
