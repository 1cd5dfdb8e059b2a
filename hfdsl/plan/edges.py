"""Edges: what every step reads of every value, in bytes, and how it gets there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import starmap
from typing import TypeAlias

from hfdsl.graph.columns import columns_read, row_bytes
from hfdsl.graph.program import Input
from hfdsl.plan.payloads import Process, Topology, planned_topology
from hfdsl.plan.plan import DRIVER, Edge, Plan, Step, Transport
from hfdsl.plan.reading import Read, reads
from hfdsl.plan.rows import RowTable, most_rows, row_table
from hfdsl.plan.segments import dependencies
from hfdsl.plan.sizes import rows_in
from hfdsl.plan.spreading import broadcasts
from hfdsl.plan.transports import goes_direct
from hfdsl.types.dims import KeptGroups

Pair: TypeAlias = tuple[Process, Process]
"""Who makes a value, and who reads it."""


def sizes_known(plan: Plan) -> bool:
    """Whether the plan was compiled for sizes that give every value its number of rows."""
    rows = [size for value in plan.inference.values if (size := rows_in(value)) is not None]
    return all(atom in plan.dims for size in rows for atom in size.atoms if not isinstance(atom, KeptGroups))


def edges(plan: Plan) -> tuple[Edge, ...]:
    """What every step reads of every value; bytes where all sizes are known.

    After a filter, and of rows that are balanced by their weights, it is the most that they can be.
    """
    table, topology, balanced_by = _most_rows(plan), planned_topology(plan), _partitioned_by(plan)
    told = frozenset(broadcasts(plan, dependencies(plan), topology.direct_groups))
    return tuple(
        edge
        for step in plan.steps
        for edge in _edges(plan, step, table, _scattered(plan, step, balanced_by), topology, told)
    )


def direct_pairs(plan: Plan) -> frozenset[Pair]:
    """Who reads from whom without the object store, as far as is known before launch: without sizes, all who may."""
    table, linked, balanced_by = _most_rows(plan), planned_topology(plan).direct_groups, _partitioned_by(plan)

    def pairs_of(step: Step) -> Mapping[int, set[Pair]]:
        return _pairs(plan, step, reads(plan, step, table) if table else None, _scattered(plan, step, balanced_by))

    return frozenset(
        pair
        for step in plan.steps
        if not step.custom
        for node, pairs in pairs_of(step).items()
        if goes_direct(plan, linked, node, step.group)
        for pair in pairs
    )


def _most_rows(plan: Plan) -> RowTable | None:
    return row_table(plan, plan.dims, most_rows(plan, plan.dims)) if sizes_known(plan) else None


def _pairs(
    plan: Plan, step: Step, read: Sequence[Sequence[Read]] | None, scattered: frozenset[int]
) -> dict[int, set[Pair]]:
    """Of every value that a step reads elsewhere makers with their readers; of rows that nobody knows, all of them."""
    found: dict[int, set[Pair]] = {node: set() for node, _ in columns_read(plan.graph, step.node)}
    open_ = found.keys() if read is None else scattered
    every = {(node, chunk) for node in open_ for chunk in range(plan.layouts[node].chunks)}
    for index, rank in enumerate(step.ranks):
        for node, chunk in every.union((one.node, one.chunk) for one in read[index]) if read is not None else every:
            if (maker := plan.layouts[node].maker(chunk)) != (step.group, rank):
                found[node].add((maker, (step.group, rank)))
    return found


def _partitioned_by(plan: Plan) -> dict[int, int | None]:
    """By which weights the output of each step is balanced; None for rows in their order."""
    balanced_by: dict[int, int | None] = {}
    padded = {step.node for step in plan.steps if step.pad is not None}
    for step in plan.steps:
        there = (balanced_by[node] for node in step.follows if balanced_by.get(node) is not None and node not in padded)
        balanced_by[step.node] = step.balance.number if step.balance else next(there, None) if step.chunks > 1 else None
    return balanced_by


def _scattered(plan: Plan, step: Step, balanced_by: Mapping[int, int | None]) -> frozenset[int]:
    """The values of which a step reads rows that weights decide: they are partitioned otherwise than its own."""
    read = {node for node, _ in columns_read(plan.graph, step.node)}
    return frozenset(node for node in read if balanced_by.get(node) != balanced_by[step.node])


def _edges(
    plan: Plan,
    step: Step,
    table: RowTable | None,
    scattered: frozenset[int],
    topology: Topology,
    told: frozenset[int],
) -> Iterator[Edge]:
    columns: dict[int, dict[str, None]] = {}
    for node, column in columns_read(plan.graph, step.node):
        names = columns.setdefault(node, {})
        if plan.presence.get(node, {}).get(column, True):
            names[column] = None
    total, moved = dict.fromkeys(columns, 0), dict.fromkeys(columns, 0)
    sizes = {(n, c): row_bytes(plan.graph, n, c, plan.dims) for n, names in columns.items() for c in names}
    widths = dict[tuple[int, tuple[str, ...]], int]()
    by_rank = reads(plan, step, table) if table else None
    for rank, own in zip(step.ranks, by_rank or (), strict=False):
        for read in own:
            if (read.node, read.columns) not in widths:
                widths[read.node, read.columns] = sum(sizes.get((read.node, name)) or 0 for name in read.columns)
            amount = sum(last - first for first, last in read.rows or ()) * widths[read.node, read.columns]
            total[read.node] += amount
            if plan.layouts[read.node].maker(read.chunk) != (step.group, rank):
                moved[read.node] += amount
    pairs = _pairs(plan, step, by_rank, scattered)
    for source in scattered & columns.keys():
        moved[source] = total[source]
    for source, names in columns.items():
        known = table is not None and all(sizes[source, name] is not None for name in names)
        counts = (total[source], moved[source]) if known else (None, None)
        way: Transport = "nccl" if source in told else _transport(plan, step, source, pairs[source], table, topology)
        yield Edge(source, step.node, tuple(names), counts[0], counts[1], way)


def _transport(
    plan: Plan, step: Step, source: int, pairs: AbstractSet[Pair], table: RowTable | None, topology: Topology
) -> Transport:
    if step.custom or (plan.layouts[source].group == DRIVER and not isinstance(plan.node(source).op, Input)):
        return "through driver"
    if isinstance(plan.node(source).op, Input):
        return "from caller"
    if table and not pairs:
        return "in process"
    if (
        pairs
        and goes_direct(plan, topology.direct_groups, source, step.group)
        and all(starmap(topology.reaches, pairs))
    ):
        return "cuda ipc"
    far = table is None or any(topology.host_of(maker) != topology.host_of(reader) for maker, reader in pairs)
    return "object store" if far else "shared memory"
