"""Resource pools: how many processes on how many nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count

from hfdsl.errors import ResourceError
from hfdsl.types.arguments import constructor_takes, takes
from hfdsl.types.numbers import brief, count_range, is_count

_names = count(1)


@constructor_takes(ResourceError, "HF514", "hf.ResourcePool")
@dataclass(frozen=True, slots=True)
class ResourcePool:
    """A set of devices: ``processes[i]`` slots on node i, one GPU each (with ``use_gpu=False`` one CPU process each).

    ``parts`` names the pools that a merged pool is made of, ``part_of`` the pool that a split pool is cut from and its
    first slot there: such pools share their devices.

    >>> train = ResourcePool([4, 4], name="train")
    >>> train.world_size, [half.world_size for half in train.split([6, 2])]
    (8, [6, 2])
    """

    processes: tuple[int, ...]
    use_gpu: bool = True
    name: str = ""
    parts: tuple[ResourcePool, ...] = ()
    part_of: tuple[ResourcePool, int] | None = field(default=None, repr=False)

    def __init__(
        self,
        processes: Sequence[int],
        use_gpu: bool = True,
        name: str | None = None,
        *,
        parts: tuple[ResourcePool, ...] = (),
        part_of: tuple[ResourcePool, int] | None = None,
    ) -> None:
        listed = isinstance(processes, Sequence) and processes
        if not listed or not all(is_count(n) for n in processes):
            wanted = count_range(*(processes if listed else ())).removeprefix("a whole number of ")
            raise ResourceError(
                "HF514",
                f"a pool takes a list with the number of processes on each node, each {wanted}, got {brief(processes)}",
            )
        if not isinstance(use_gpu, bool):
            raise ResourceError("HF514", f"use_gpu= of a pool is True or False, got {use_gpu!r}")
        if name is not None and not isinstance(name, str):
            raise ResourceError("HF514", f"name= of a pool is text, got {name!r}")
        for attribute, value in (
            ("processes", tuple(processes)),
            ("use_gpu", use_gpu),
            ("name", name or f"pool{next(_names)}"),
            ("parts", parts),
            ("part_of", part_of),
        ):
            object.__setattr__(self, attribute, value)

    @property
    def world_size(self) -> int:
        """The number of slots."""
        return sum(self.processes)

    @takes(ResourceError, "HF514", "merge of a pool")
    def merge(self, other: ResourcePool, name: str | None = None) -> ResourcePool:
        """Merge two pools into one with this one's slots and then the other's, on the same devices.

        Raises:
            ResourceError: HF514 if one has GPUs and the other has none, or a device is in both.
        """
        if not isinstance(other, ResourcePool):
            raise ResourceError(
                "HF514", f"cannot merge '{self.name}' with {other!r}: merge takes another hf.ResourcePool"
            )
        if self.use_gpu != other.use_gpu:
            raise ResourceError(
                "HF514", f"cannot merge '{self.name}' and '{other.name}': one uses GPUs, the other does not"
            )
        owned, others = slot_ranges(self), slot_ranges(other)
        if any(a.name == b.name and s.start < t.stop and t.start < s.stop for a, s in owned for b, t in others):
            raise ResourceError("HF514", f"cannot merge '{self.name}' and '{other.name}': they already share devices")
        merged = name or f"{self.name}+{other.name}"
        return ResourcePool(self.processes + other.processes, self.use_gpu, merged, parts=(self, other))

    @takes(ResourceError, "HF514", "split of a pool")
    def split(self, sizes: Sequence[int]) -> tuple[ResourcePool, ...]:
        """Split this pool into pools of consecutive slots, on the same devices.

        Raises:
            ResourceError: HF514 if the sizes do not add up to the pool.
        """
        if not isinstance(sizes, Sequence) or not all(is_count(size, least=0) for size in sizes):
            text = f"split of '{self.name}' takes a list with the number of slots of each part, got {brief(sizes)}"
            raise ResourceError("HF514", text)
        if sum(sizes) != self.world_size or 0 in sizes:
            raise ResourceError(
                "HF514",
                f"cannot split '{self.name}' of {self.world_size} slots into {list(sizes)}: sizes must add up to it",
            )
        return tuple(
            ResourcePool(
                _per_node(self.processes, start, size),
                self.use_gpu,
                f"{self.name}[{start}:{start + size}]",
                part_of=(self, start),
            )
            for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)  # and the end
        )

    def __str__(self) -> str:
        return f"{self.name} {list(self.processes)}{'' if self.use_gpu else ' cpu'}"


def _per_node(processes: tuple[int, ...], start: int, size: int) -> list[int]:
    slots_per_node, node_start = [], 0
    for slots in processes:
        overlap = min(node_start + slots, start + size) - max(node_start, start)
        slots_per_node += [overlap] if overlap > 0 else []
        node_start += slots
    return slots_per_node


def devices(pool: ResourcePool) -> tuple[tuple[str, int], ...]:
    """The devices of a pool's slots in rank order, each as (owning pool, slot)."""
    if pool.part_of:
        parent, start = pool.part_of
        return devices(parent)[start : start + pool.world_size]
    if pool.parts:
        return tuple(device for part in pool.parts for device in devices(part))
    return tuple((pool.name, slot) for slot in range(pool.world_size))


def slot_ranges(pool: ResourcePool) -> tuple[tuple[ResourcePool, range], ...]:
    """The devices of ``devices`` as ranges of slots, each with the pool that owns them.

    >>> left, right = ResourcePool([4, 4]).split([6, 2])
    >>> [slots for _, slots in slot_ranges(right.merge(left))]
    [range(6, 8), range(0, 6)]
    """
    if pool.part_of:
        parent, start = pool.part_of
        return tuple(_cut(slot_ranges(parent), start, start + pool.world_size))
    if pool.parts:
        return tuple(owned for part in pool.parts for owned in slot_ranges(part))
    return ((pool, range(pool.world_size)),)


def _cut(ranges: tuple[tuple[ResourcePool, range], ...], start: int, stop: int) -> Iterator[tuple[ResourcePool, range]]:
    before = 0
    for root, slots in ranges:
        if part := slots[max(start - before, 0) : max(stop - before, 0)]:
            yield root, part
        before += len(slots)


def node_runs(pool: ResourcePool) -> Iterator[tuple[ResourcePool, int, int]]:
    """The slots of a pool in rank order, node by node: (owning pool, its node, how many slots there).

    >>> left, right = ResourcePool([4, 4]).split([6, 2])
    >>> [(node, slots) for _, node, slots in node_runs(right.merge(left))]
    [(1, 2), (0, 4), (1, 2)]
    """
    for root, slots in slot_ranges(pool):
        slot = slots.start
        node_stops = list(accumulate(root.processes))
        node = bisect_right(node_stops, slot)
        while slot < slots.stop:
            stop_here = min(node_stops[node], slots.stop)
            yield root, node, stop_here - slot
            slot, node = stop_here, node + 1


def roots(pool: ResourcePool) -> tuple[ResourcePool, ...]:
    """The pools that own a pool's devices: itself, or those that it was merged or cut from."""
    if pool.part_of:
        return roots(pool.part_of[0])
    return tuple(root for part in pool.parts for root in roots(part)) if pool.parts else (pool,)
