"""Columns: which stored columns a call or a result reads, looking through repeats and other row operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hfdsl.graph.program import FunctionCall, Graph, Ref, RoleCall
from hfdsl.graph.signatures import VALUE, ListType, PortType, RecordType
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import constant
from hfdsl.types.dtypes import Int64

ROW_WEIGHT = "weight of "
"""Prefix of the derived column of row weights; no declared column has spaces in its name."""


def row_weight_of(column: str) -> str:
    """The name of the derived column of row weights by a column."""
    return ROW_WEIGHT + column


def is_row_weight(column: str) -> bool:
    """Whether a column is a derived column of row weights."""
    return column.startswith(ROW_WEIGHT)


def columns_read(graph: Graph, number: int) -> Iterator[tuple[int, str]]:
    """The stored (node, column) pairs that the ports of a call take."""
    node = graph.nodes[number]
    if not isinstance(node.op, (RoleCall, FunctionCall)):
        return
    for name, operand in node.arguments:
        port = node.op.signature.port(name)
        if isinstance(operand, Ref) and port is not None:
            for column in columns_of(port.type, operand):
                yield from origins(graph, operand.node, column)


def columns_of(port_type: PortType, operand: Ref) -> tuple[str, ...]:
    """The columns that a port takes from its operand."""
    kind = port_type.inner if isinstance(port_type, ListType) else port_type
    return tuple(schema(kind.record).fields) if isinstance(kind, RecordType) else (operand.column or VALUE,)


def origins(graph: Graph, number: int, column: str) -> Iterator[tuple[int, str]]:
    """The stored columns that a column of a node is read from."""
    source = graph.nodes[number].source(column)
    if source is None:
        yield number, column
    elif isinstance(source, Ref):
        yield from origins(graph, source.node, source.column or VALUE)


def result_type(graph: Graph, ref: Ref) -> PortType:
    """The type of a value that the dataflow returns."""
    result = graph.nodes[ref.node].result
    return schema(result.record).fields[ref.column] if isinstance(result, RecordType) and ref.column else result


def result_origins(graph: Graph, ref: Ref) -> Iterator[tuple[int, str]]:
    """The stored (node, column) pairs that a value which the dataflow returns is read from."""
    for column in columns_of(result_type(graph, ref), ref):
        yield from origins(graph, ref.node, column)


def stored_spec(result: PortType, column: str) -> FieldSpec | None:
    """The declaration of a stored column; None for a value that is not a column."""
    if is_row_weight(column):
        weighed = stored_spec(result, column.removeprefix(ROW_WEIGHT))
        return ColumnSpec(Int64, weighed.dims[:1], weighed.optional) if isinstance(weighed, ColumnSpec) else None
    if isinstance(result, RecordType):
        return schema(result.record).fields[column]
    return result if isinstance(result, (ColumnSpec, ObjSpec, MetricSpec)) else None


def row_bytes(graph: Graph, node: int, column: str, dims: Mapping[Any, int]) -> int | None:
    """Bytes of one row of a column: 0 for Python objects, None if a size is unknown, or of each row its own."""
    result = graph.nodes[node].result
    if isinstance(result, ListType):
        return None  # every entry has rows of its own
    spec = stored_spec(result, column)
    if not isinstance(spec, ColumnSpec):
        return 0
    if spec.ragged:
        return None
    size = constant(spec.dtype.itemsize)
    for dim in spec.dims[1:]:
        size = size * dim
    number = size.substitute({dim: constant(n) for dim, n in dims.items()}).value
    return int(number) if number is not None else None
