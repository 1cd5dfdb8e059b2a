"""Traffic: which rank reads which chunks of which columns, and what of it comes from another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hfdsl.graph.program import (
    Filter,
    FunctionCall,
    Graph,
    Input,
    MiniBatch,
    Pack,
    Present,
    Ref,
    Repeat,
    RoleCall,
    Take,
)
from hfdsl.graph.signatures import VALUE, ListType, PortType, RecordType
from hfdsl.plan.filters import all_kept, filters_behind, masks
from hfdsl.plan.plan import DRIVER, Edge, Plan, Step, Transport
from hfdsl.plan.reading import Reader, padded_spans
from hfdsl.plan.rows import RowTable, row_table, rows_in, share
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Kept, constant


@dataclass(frozen=True, slots=True)
class Read:
    """A chunk of a column that a rank reads, and how many of its rows."""

    node: int
    column: str
    chunk: int
    rows: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Who gets what from whom, for one set of sizes.

    ``remote[node][i]``: the (node, chunk) pairs that the i-th rank of a step gets from other processes;
    ``exports[node]``: the columns of a value that leave the process that made it.
    """

    table: RowTable
    remote: Mapping[int, tuple[tuple[tuple[int, int], ...], ...]]
    exports: Mapping[int, tuple[str, ...]]


# -- statically: which columns


def columns_read(graph: Graph, number: int) -> Iterator[tuple[int, str]]:
    """The stored (node, column) pairs that the ports of a call take; repeats and the like are seen through."""
    node = graph.nodes[number]
    if not isinstance(node.op, (RoleCall, FunctionCall)):
        return
    for name, operand in node.arguments:
        port = node.op.signature.port(name)
        if isinstance(operand, Ref) and port is not None:
            for column in columns_of(port.type, operand):
                yield from origins(graph, operand.node, column)


def columns_of(wanted: PortType, operand: Ref) -> tuple[str, ...]:
    """The columns that a port takes of its operand."""
    kind = wanted.inner if isinstance(wanted, ListType) else wanted
    return tuple(schema(kind.record).fields) if isinstance(kind, RecordType) else (operand.column or VALUE,)


def origins(graph: Graph, number: int, column: str) -> Iterator[tuple[int, str]]:
    """The columns that a column of a node is read from: repeats, mini-batches and merges are seen through."""
    node = graph.nodes[number]
    match node.op:
        case Repeat() | MiniBatch() | Filter() | Take():
            if node.batch is not None:
                yield from origins(graph, node.batch.node, column)
        case Pack():
            operand = dict(node.arguments)[column]
            if isinstance(operand, Ref):
                yield from origins(graph, operand.node, operand.column or VALUE)
        case Present():
            yield from (pair for ref in node.refs for pair in origins(graph, ref.node, ref.column or VALUE))
        case _:
            yield number, column


def result_type(graph: Graph, ref: Ref) -> PortType:
    """The type of a value that the dataflow returns."""
    made = graph.nodes[ref.node].result
    return schema(made.record).fields[ref.column] if isinstance(made, RecordType) and ref.column else made


def result_origins(graph: Graph, ref: Ref) -> Iterator[tuple[int, str]]:
    """The stored (node, column) pairs that a value which the dataflow returns is read from."""
    for column in columns_of(result_type(graph, ref), ref):
        yield from origins(graph, ref.node, column)


def row_bytes(graph: Graph, node: int, column: str, dims: Mapping[Any, int]) -> int | None:
    """Bytes of one row of a column: 0 for Python objects, None where a size is unknown, or of each row its own."""
    result = graph.nodes[node].result
    if isinstance(result, ListType):
        return None  # every entry has rows of its own
    spec = schema(result.record).fields[column] if isinstance(result, RecordType) else result
    if not isinstance(spec, ColumnSpec):
        return 0
    if spec.ragged:
        return None
    size = constant(spec.dtype.itemsize)
    for dim in spec.dims[1:]:
        size = size * dim
    number = size.substitute({dim: constant(n) for dim, n in dims.items()}).value
    return int(number) if number is not None else None


# -- for known sizes: which chunks


def reads(plan: Plan, step: Step, index: int, table: RowTable) -> Iterator[Read]:
    """What the ``index``-th rank of a step reads."""
    reader = Reader(plan.graph.nodes, plan.layouts, table, lambda node, chunk: {})
    for name, operand in step.arguments:
        port = step.signature.port(name)
        if not isinstance(operand, Ref) or port is None:
            continue
        if step.per_rank:
            yield from (Read(operand.node, column, index, 0) for column in columns_of(port.type, operand))
            continue
        rows = table.rows.get(operand.node, 0)
        spans = padded_spans(*share(table, step, operand, step.chunk_of[index]), rows, step.pad)
        for column in columns_of(port.type, operand):
            needed: dict[tuple[int, str], list[tuple[int, int]]] = {}
            for start, stop in spans:
                for node, stored, first, last in reader.resolve(operand.node, column, start, stop):
                    needed.setdefault((node, stored), []).append((first, last))
            for (node, stored), parts in needed.items():
                for first, last in _distinct(parts):
                    yield from (Read(node, stored, piece, n) for piece, n in reader.chunks(node, stored, first, last))


def _distinct(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The rows of all spans, each once."""
    merged: list[tuple[int, int]] = []
    for span in sorted(spans):
        if merged and span[0] <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], span[1])
        else:
            merged.append(span)
    return merged


def traffic(plan: Plan, table: RowTable) -> Traffic:
    """Who gets what from whom, for one set of sizes.

    A step that waits for a filter which has not run is left out; what it is going to read may be read anywhere.
    """
    behind = filters_behind(plan.graph)
    remote: dict[int, tuple[tuple[tuple[int, int], ...], ...]] = {}
    exports: dict[int, dict[str, None]] = {}
    for ref in plan.graph.output.refs():
        for node, stored in result_origins(plan.graph, ref):
            exports.setdefault(node, {})[stored] = None
    for _, keep in masks(plan.graph):
        for node, stored in origins(plan.graph, keep.node, keep.column or VALUE):
            exports.setdefault(node, {})[stored] = None
    for step in plan.steps:
        if behind[step.node] - table.picks.keys():
            for node, stored in columns_read(plan.graph, step.node):
                exports.setdefault(node, {})[stored] = None
            continue
        ranks = []
        for index, rank in enumerate(step.ranks):
            pairs: dict[tuple[int, int], None] = {}
            for read in reads(plan, step, index, table):
                if step.custom or not _kept(plan, step, rank, read):
                    pairs[read.node, read.chunk] = None
                    exports.setdefault(read.node, {})[read.column] = None
            ranks.append(tuple(pairs))
        remote[step.node] = tuple(ranks)
    return Traffic(table, remote, {node: tuple(columns) for node, columns in exports.items()})


def _kept(plan: Plan, step: Step, rank: int, read: Read) -> bool:
    """Whether the rank made it: what the caller gave and what a collect function made are handed to every reader."""
    made_here = plan.layouts[read.node].group != DRIVER or isinstance(plan.node(read.node).op, FunctionCall)
    return made_here and _here(plan, step, rank, read)


def _here(plan: Plan, step: Step, rank: int, read: Read) -> bool:
    layout = plan.layouts[read.node]
    return layout.group == step.group and layout.holders[read.chunk] == rank


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
    away = dict.fromkeys(columns, False)
    sizes = {(n, c): row_bytes(plan.graph, n, c, plan.dims) for n, names in columns.items() for c in names}
    for index, rank in enumerate(step.ranks):
        for read in reads(plan, step, index, table) if table else ():
            amount = read.rows * (sizes.get((read.node, read.column)) or 0)
            total[read.node] += amount
            if not _here(plan, step, rank, read):
                moved[read.node] += amount
                away[read.node] = True
    for source, names in columns.items():
        known = table is not None and all(sizes[source, name] is not None for name in names)
        transport: Transport
        if step.custom:
            transport = "through driver"
        elif isinstance(plan.node(source).op, Input):
            transport = "from caller"
        elif plan.layouts[source].group == DRIVER:
            transport = "through driver"
        else:
            transport = "in process" if table and not away[source] else "object store"
        counts = (total[source], moved[source]) if known else (None, None)
        yield Edge(source, step.node, tuple(names), counts[0], counts[1], transport)
