"""Payloads: what one process makes for the same readers leaves it as one object."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TypeAlias

from hfdsl.deploy.pools import node_runs
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.protocols.ranges import RowRange, RowRanges, merged

Process: TypeAlias = tuple[str, int]
"""A group's name and a rank of it."""

DRIVER_PROCESS: Process = (DRIVER, 0)

Destination: TypeAlias = Hashable
"""Where processes share memory: a node. What several of them read goes there once."""

ANY_HOST: Destination = None
"""The destination of a value of which nobody knows yet who is going to read it."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Where processes are; those of ``linked`` groups need no object store where one ``reaches`` the other.

    ``apart`` are pairs of groups of which not every process reaches every other.
    """

    host_of: Callable[[Process], Destination]
    direct_groups: frozenset[str]
    reaches: Callable[[Process, Process], bool]
    partly_connected: frozenset[tuple[str, str]]


PayloadKey: TypeAlias = tuple[int, int, int]
"""A payload's name: the segment that it comes from, the rank that makes it, and its number there."""


@dataclass(frozen=True, slots=True)
class ColumnSlice:
    """Rows of a column of a chunk, counted within the chunk; with ``rows`` None the whole of what has no rows."""

    node: int
    chunk: int
    column: str
    rows: RowRanges | None


@dataclass(frozen=True, slots=True)
class Payload:
    """Cuts with the same readers, of one process in one segment; ``direct`` ones go around the object store.

    A ``broadcast`` one goes from the first to all others of these processes at once. ``numbers`` are metrics and plain
    numbers that only the driver reads.
    """

    key: PayloadKey
    slices: tuple[ColumnSlice, ...]
    direct: bool = False
    broadcast: tuple[Process, ...] = ()
    inline: bool = False


@dataclass(slots=True)
class RemoteReads:
    """What is read of one chunk elsewhere: rows by column, for each destination."""

    by_destination: dict[Destination, dict[str, list[RowRanges] | None]] = field(default_factory=dict)

    def add(self, destination: Destination, column: str, rows: RowRanges | None) -> None:
        """A process there reads these rows of a column; with None the whole of what has no rows."""
        asked = self.by_destination.setdefault(destination, {}).setdefault(column, None if rows is None else [])
        if asked is not None and rows is not None and rows not in asked[-1:]:
            asked.append(rows)

    def cells(self) -> Iterator[tuple[str, RowRanges | None, frozenset[Destination]]]:
        """Rows of columns, none of them twice, with all destinations that read them."""
        for column in dict.fromkeys(name for wanted in self.by_destination.values() for name in wanted):
            wanted_by = {
                destination: wanted[column] for destination, wanted in self.by_destination.items() if column in wanted
            }
            rows = {destination: merged(chain(*asked)) for destination, asked in wanted_by.items() if asked is not None}
            if not rows:
                yield column, None, frozenset(wanted_by)
            elif len(set(rows.values())) == 1:
                yield column, next(iter(rows.values())), frozenset(rows)
            else:
                yield from ((column, ranges, destinations) for destinations, ranges in _by_readers(rows).items())


def _by_readers(rows: Mapping[Destination, RowRanges]) -> dict[frozenset[Destination], RowRanges]:
    """The rows that each set of destinations reads and no other destination does.

    >>> list(_by_readers({"a": ((0, 4),), "b": ((2, 4),)}).values())
    [((0, 2),), ((2, 4),)]
    """
    begins: dict[int, list[Destination]] = {}
    ends: dict[int, list[Destination]] = {}
    for destination, ranges in rows.items():
        for first, last in ranges:
            if first < last:
                begins.setdefault(first, []).append(destination)
                ends.setdefault(last, []).append(destination)
    found: dict[frozenset[Destination], list[RowRange]] = {}
    reading: set[Destination] = set()
    for low, high in pairwise(sorted({*begins, *ends})):
        reading.difference_update(ends.get(low, ()))
        reading.update(begins.get(low, ()))
        if reading:
            found.setdefault(frozenset(reading), []).append((low, high))
    without = frozenset(
        destination for destination, ranges in rows.items() if all(first == last for first, last in ranges)
    )
    if without:  # no rows have a dtype and a shape too
        found.setdefault(without, []).append((0, 0))
    return {readers: merged(ranges) for readers, ranges in found.items()}


def planned_topology(plan: Plan) -> Topology:
    """The nodes as the pools have them: two pools are on different nodes, as far as anybody knows before launch."""
    nodes = {
        group.name: [(root.name, node) for root, node, slots in node_runs(group.pool) for _ in range(slots)]
        for group in plan.groups
    }

    def node(process: Process) -> Destination:
        return nodes[process[0]][process[1]] if process[0] in nodes else DRIVER

    def one_node(maker: Process, reader: Process) -> bool:
        ours, theirs = nodes[maker[0]][maker[1]], nodes[reader[0]][reader[1]]
        return ours[0] != theirs[0] or ours == theirs

    linked = frozenset(group.name for group in plan.groups if group.pool.use_gpu)
    on = {name: frozenset(nodes[name]) for name in linked}
    far = frozenset((one, other) for one in on for other in on if _spread(on[one], on[other]))
    return Topology(node, linked, one_node, far)


def _spread(ours: frozenset[tuple[str, int]], theirs: frozenset[tuple[str, int]]) -> bool:
    """Whether a pool that both have a part of puts them on several nodes."""
    shared = {root for root, _ in ours} & {root for root, _ in theirs}
    return any(sum(name == root for name, _ in ours | theirs) > 1 for root in shared)
