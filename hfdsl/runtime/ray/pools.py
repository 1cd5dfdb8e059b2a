"""The pools of a deployment as placement groups of Ray."""

from __future__ import annotations

import secrets

from hfdsl.deploy.pools import ResourcePool
from hfdsl.single_controller.pool import RayResourcePool, merge_resource_pool, split_resource_pool


class Pools:
    """Placement groups by pool; merged and split pools share those of their parts."""

    def __init__(self, processes_per_slot: int) -> None:
        self._processes_per_slot = processes_per_slot
        self._pools: dict[str, RayResourcePool] = {}

    def place(self, pool: ResourcePool, timeout: float) -> RayResourcePool:
        """Place a pool on the cluster, which has ``timeout`` seconds to make room for it.

        Raises:
            ResourceError: HF502, HF505 if the cluster cannot hold it.
        """
        if pool.name not in self._pools:
            if pool.part_of:
                parent, start = pool.part_of
                remaining = parent.world_size - start - pool.world_size
                sizes = [size for size in (start, pool.world_size, remaining) if size]
                self._pools[pool.name] = split_resource_pool(self.place(parent, timeout), sizes)[1 if start else 0]
            elif pool.parts:
                self._pools[pool.name] = merge_resource_pool(*(self.place(part, timeout) for part in pool.parts))
            else:
                self._pools[pool.name] = RayResourcePool(
                    pool.processes,
                    pool.use_gpu,
                    f"{pool.name}-{secrets.token_hex(3)}",
                    self._processes_per_slot,
                    timeout=timeout,
                )
        return self._pools[pool.name]

    def close(self) -> None:
        """Release the slots."""
        for pool in self._pools.values():
            pool.shutdown()
        self._pools.clear()
