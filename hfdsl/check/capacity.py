"""Capacity: what a deployment requests of a cluster's nodes at launch, and whether they can hold it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias

from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment, process_groups, processes_per_slot
from hfdsl.deploy.pools import ResourcePool, slot_ranges
from hfdsl.graph.spans import Span
from hfdsl.protocols.bin_packing import CPU_UNITS, Amounts, fits
from hfdsl.protocols.worker import CPU_PER_PROCESS
from hfdsl.types.dims import Answer


@dataclass(slots=True)
class Claim:
    """The request of a pool for ``roles``: ``sizes`` are numbers of slots that must be on one node each."""

    pool: ResourcePool
    roles: list[str]
    nodes: set[int]
    span: Span

    @property
    def sizes(self) -> Counter[int]:
        """The count of each number of slots on one node."""
        return Counter(self.pool.processes[node] for node in self.nodes)


Claims: TypeAlias = Sequence[Claim]


def claims(deployment: Deployment) -> list[Claim]:
    """The pools that a launch places, each once; for a split pool, only the nodes with a used part."""
    claims_by_pool: dict[str, Claim] = {}
    used: set[tuple[str, range]] = set()  # many roles may share the same slots, on thousands of nodes
    for root, slots, name in slots_in_use(deployment):
        used.add((root.name, slots))
        claim = claims_by_pool.setdefault(root.name, Claim(root, [], set(), deployment[name].span))
        claim.roles += [] if name in claim.roles else [name]
    ends = {name: list(accumulate(claim.pool.processes)) for name, claim in claims_by_pool.items()}
    for pool, slots in used:
        first, last = bisect_right(ends[pool], slots.start), bisect_left(ends[pool], slots.stop)
        claims_by_pool[pool].nodes.update(range(first, last + 1))
    return list(claims_by_pool.values())


def slots_in_use(deployment: Deployment) -> Iterator[tuple[ResourcePool, range, str]]:
    """The slots of every role, as ranges in the pools that own them: (owning pool, slots, role)."""
    first: dict[str, ResourcePool] = {}
    for name, placement in deployment.placements.items():
        for root, slots in slot_ranges(placement.pool):
            if first.setdefault(root.name, root) == root:  # of two pools of one name (HF514) the first counts
                yield root, slots, name


def gpu_slots(deployment: Deployment) -> Mapping[str, tuple[ResourcePool, list[tuple[range, str]]]]:
    """The slots in use of each pool with GPUs, by its name, each range with its role."""
    by_pool: dict[str, tuple[ResourcePool, list[tuple[range, str]]]] = {}
    for root, slots, role in slots_in_use(deployment):
        if root.use_gpu:
            by_pool.setdefault(root.name, (root, []))[1].append((slots, role))
    return by_pool


def shared_slots(deployment: Deployment) -> Iterator[tuple[ResourcePool, range, tuple[str, ...]]]:
    """The pool, the slots and the roles of each range of slots with GPUs that the same roles use.

    >>> import hfdsl as hf
    >>> class Model(hf.Worker): ...
    >>> pool = hf.ResourcePool([4], name="pool")
    >>> engines, _ = pool.split([1, 3])
    >>> deployment = hf.Deployment(actor=hf.place(Model, pool=pool), engine=hf.place(Model, pool=engines))
    >>> [(slots, roles) for _, slots, roles in shared_slots(deployment)]
    [(range(0, 1), ('actor', 'engine')), (range(1, 4), ('actor',))]
    """
    for root, slots in gpu_slots(deployment).values():
        for low, high in pairwise(sorted({edge for used, _ in slots for edge in (used.start, used.stop)})):
            if roles := tuple(role for used, role in slots if low in used):
                yield root, range(low, high), roles


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a cluster for slots that request ``cpu`` units of a CPU each: of GPUs alone, or of both."""

    cluster: Cluster
    cpu: int
    resource: Literal["GPU", "CPU"]

    def answer(self, claimed: Claims) -> Answer:
        """Whether the nodes can hold all of these pools."""
        return fits(self.parts(claimed), self.nodes)

    @property
    def nodes(self) -> Mapping[Amounts, int]:
        """The number of nodes by their resources."""
        nodes: Counter[Amounts] = Counter()
        for kind in self.cluster.kinds:
            cpus = round(kind.cpus * CPU_UNITS)
            nodes[(kind.gpus,) if self.resource == "GPU" else (kind.gpus, cpus)] += kind.count
        return nodes

    def parts(self, claimed: Claims) -> Mapping[Amounts, int]:
        """The parts that must be on one node each."""
        parts: Counter[Amounts] = Counter()
        for claim in claimed:
            for size, count in claim.sizes.items():
                gpus = size if claim.pool.use_gpu else 0
                if self.resource == "CPU":
                    parts[(gpus, size * self.cpu)] += count
                elif gpus:
                    parts[(gpus,)] += count
        return parts


def capacity_for(deployment: Deployment, cluster: Cluster, resource: Literal["GPU", "CPU"] = "CPU") -> Capacity:
    """The capacity of a cluster for a deployment's slots: for their GPUs, or (CPU) for everything they request."""
    depth = processes_per_slot(process_groups(deployment))
    return Capacity(cluster, round(CPU_PER_PROCESS * CPU_UNITS * depth), resource)


def has_capacity(cluster: Cluster, deployment: Deployment) -> bool:
    """Whether the nodes certainly have room for all pools."""
    return capacity_for(deployment, cluster).answer(claims(deployment)) is Answer.PROVED


def words(names: Sequence[str], quote: str = "'") -> str:
    """Names as an enumeration.

    >>> words(["actor", "critic", "reward"])
    "'actor', 'critic' and 'reward'"
    """
    *first, last = [f"{quote}{name}{quote}" for name in names]
    return f"{', '.join(first)} and {last}" if first else last


def shape(processes: Sequence[int]) -> str:
    """The nodes of a pool as a user writes them.

    >>> shape((4, 4)), shape((8,) * 2048)
    ('[4, 4]', '[8] * 2048')
    """
    if len(processes) <= 8:
        return str(list(processes))
    if (slots := max(processes)) == min(processes):
        return f"[{slots}] * {len(processes)}"
    return f"[{', '.join(map(str, processes[:4]))}, ... {len(processes)} nodes]"
