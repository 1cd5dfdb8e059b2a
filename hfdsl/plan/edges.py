"""Edges: what every step reads of every value, in bytes, and how it gets there."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.graph.program import Input
from hfdsl.plan.columns import columns_read, row_bytes
from hfdsl.plan.filters import all_kept
from hfdsl.plan.parcels import planned_sites
from hfdsl.plan.plan import DRIVER, Edge, Plan, Step, Transport
from hfdsl.plan.reads import reads
from hfdsl.plan.rows import RowTable, row_table, rows_in
from hfdsl.types.dims import Kept


def sizes_known(plan: Plan) -> bool:
    """Whether the plan was compiled for sizes that give every value its number of rows."""
    rows = [size for value in plan.inference.values if (size := rows_in(value)) is not None]
    return all(atom in plan.dims for size in rows for atom in size.atoms if not isinstance(atom, Kept))


def edges(plan: Plan) -> tuple[Edge, ...]:
    """What every step reads of every value; bytes where all sizes are known, after a filter the most that it can be."""
    table = row_table(plan, plan.dims, all_kept(plan, plan.dims)) if sizes_known(plan) else None
    return tuple(edge for step in plan.steps for edge in _edges(plan, step, table))


def _edges(plan: Plan, step: Step, table: RowTable | None) -> Iterator[Edge]:
    columns: dict[int, dict[str, None]] = {}
    for node, column in columns_read(plan.graph, step.node):
        names = columns.setdefault(node, {})
        if plan.presence.get(node, {}).get(column, True):
            names[column] = None
    total, moved = dict.fromkeys(columns, 0), dict.fromkeys(columns, 0)
    away, far = dict.fromkeys(columns, False), dict.fromkeys(columns, False)
    sizes = {(n, c): row_bytes(plan.graph, n, c, plan.dims) for n, names in columns.items() for c in names}
    site, widths = planned_sites(plan), dict[tuple[int, tuple[str, ...]], int]()
    for rank, own in zip(step.ranks, reads(plan, step, table) if table else (), strict=False):
        for read in own:
            if (read.node, read.columns) not in widths:
                widths[read.node, read.columns] = sum(sizes.get((read.node, name)) or 0 for name in read.columns)
            amount = (read.rows[1] - read.rows[0] if read.rows else 0) * widths[read.node, read.columns]
            total[read.node] += amount
            maker = plan.layouts[read.node].maker(read.chunk)
            if maker != (step.group, rank):
                moved[read.node] += amount
                away[read.node] = True
                far[read.node] = far[read.node] or site(maker) != site((step.group, rank))
    for source, names in columns.items():
        known = table is not None and all(sizes[source, name] is not None for name in names)
        transport: Transport
        if step.custom:
            transport = "through driver"
        elif isinstance(plan.node(source).op, Input):
            transport = "from caller"
        elif plan.layouts[source].group == DRIVER:
            transport = "through driver"
        elif table and not away[source]:
            transport = "in process"
        else:
            transport = "object store" if far[source] or not table else "shared memory"
        counts = (total[source], moved[source]) if known else (None, None)
        yield Edge(source, step.node, tuple(names), counts[0], counts[1], transport)
