"""Payloads: everything that one process sends to the same readers travels as one object."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias

from hfdsl.deploy.pools import node_runs
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.protocols.ranges import RowRanges

Process: TypeAlias = tuple[str, int]
"""A group's name and a rank of it."""

DRIVER_PROCESS: Process = (DRIVER, 0)

CALLER = -1
"""The segment number that stands for the caller: payloads of the inputs of a step come from it."""

DRIVER_RANK = -1
"""The driver's rank in the key of a payload, and among the ranks that receive payloads."""

Destination: TypeAlias = Hashable
"""A host, whose processes share memory and receive together what several of them read; or one process alone."""

ANY_HOST: Destination = None
"""The destination of a value whose readers are not known yet."""


@dataclass(frozen=True, slots=True)
class Topology:
    """On which hosts processes run, and which of them transfer data without the object store.

    Processes of ``direct_groups`` do where one ``reaches`` the other. In the pairs of groups that are
    ``partly_connected`` some process does not reach some other. Those of ``exchanging`` groups, all where it is None,
    have communicators for the exchange of weights.
    """

    host_of: Callable[[Process], Destination]
    direct_groups: frozenset[str]
    reaches: Callable[[Process, Process], bool]
    partly_connected: frozenset[tuple[str, str]]
    exchanging: frozenset[str] | None = None


PayloadKey: TypeAlias = tuple[int, int, int]
"""A payload's name: the segment that it comes from, the rank that makes it, and its number there."""


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """Rows of a column of a chunk, counted within the chunk; ``rows`` is None for the whole of what has no rows."""

    node: int
    chunk: int
    column: str
    rows: RowRanges | None


@dataclass(frozen=True, slots=True)
class Payload:
    """Slices with the same readers, of one process in one segment; ``direct`` ones bypass the object store.

    ``broadcast`` lists who takes part in a broadcast, or in an exchange of weights, those that send first. ``inline``
    payloads are metrics and plain numbers that only the driver reads: they travel in the reply of the call that makes
    them.
    """

    key: PayloadKey
    slices: tuple[ColumnSlice, ...]
    direct: bool = False
    broadcast: tuple[Process, ...] = ()
    inline: bool = False


def planned_topology(plan: Plan) -> Topology:
    """The hosts as the pools declare them: before launch, two pools are taken to be on different hosts."""
    hosts = {
        group.name: [(root.name, node) for root, node, slots in node_runs(group.pool) for _ in range(slots)]
        for group in plan.groups
    }

    def host_of(process: Process) -> Destination:
        return hosts[process[0]][process[1]] if process[0] in hosts else DRIVER

    def reaches(producer: Process, reader: Process) -> bool:
        # Hosts of one pool are known to be the same or not; of two pools the launch decides, so take them as connected.
        source, target = hosts[producer[0]][producer[1]], hosts[reader[0]][reader[1]]
        return source[0] != target[0] or source == target

    direct_groups = frozenset(group.name for group in plan.groups if group.pool.use_gpu)
    used = {name: frozenset(hosts[name]) for name in direct_groups}
    partly_connected = frozenset(
        (producer, reader) for producer in used for reader in used if _on_several_hosts(used[producer], used[reader])
    )
    return Topology(host_of=host_of, direct_groups=direct_groups, reaches=reaches, partly_connected=partly_connected)


def _on_several_hosts(producers: frozenset[tuple[str, int]], readers: frozenset[tuple[str, int]]) -> bool:
    """Whether a pool that both groups use a part of puts them on several hosts."""
    shared = {root for root, _ in producers} & {root for root, _ in readers}
    return any(sum(name == root for name, _ in producers | readers) > 1 for root in shared)
