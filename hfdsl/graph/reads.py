"""Reads of calls, filters and records of columns: the columns of their arguments that have rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from hfdsl.graph.infer import Inference
from hfdsl.graph.program import Derived, FunctionCall, Node, Pack, Ref, RoleCall
from hfdsl.graph.signatures import PortType, RecordType, Signature
from hfdsl.graph.values import RecordValue
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, ObjSpec
from hfdsl.types.dims import Size


class RowColumn(NamedTuple):  # a program has thousands of them, and a tuple is made fast
    """A column that an operation reads: at which port, which value it is, and the row dim that it has there.

    ``spec`` is the column as it is declared, ``rows`` how many rows it has here, ``inner`` its dims beside them.
    """

    port: str
    node: int
    name: str | None
    row: Size | None
    rows: Size | None
    spec: ColumnSpec | ObjSpec
    inner: tuple[Any, ...]

    @property
    def ref(self) -> Ref:
        """The value."""
        return Ref(self.node, self.name)

    def of_node(self, node: int) -> RowColumn:
        """This column of another value."""
        return RowColumn(
            port=self.port,
            node=node,
            name=self.name,
            row=self.row,
            rows=self.rows,
            spec=self.spec,
            inner=self.inner,
        )


class Reads(NamedTuple):
    """An argument that has rows: its position among those of its node, and the columns of it that are read.

    Nodes that are alike share it. The columns are those of the first of them, which reads other values than the rest.
    """

    position: int
    columns: tuple[RowColumn, ...]
    inner: tuple[Any, ...]  # the dims of all columns beside their rows

    @property
    def row(self) -> Size | None:
        """The row dim that the argument has at its port."""
        return self.columns[0].row


def signature_rows(kind: PortType) -> Size | None:
    """The row dim of what a signature declares."""
    if isinstance(kind, RecordType):
        return schema(kind.record).row
    if isinstance(kind, ObjSpec):
        return kind.row
    return kind.dims[0] if isinstance(kind, ColumnSpec) else None


def reads_of(inference: Inference, node: Node) -> tuple[Reads, ...]:
    """The arguments with rows that a call reads, or from which a record is built."""
    reads: list[Reads] = []
    ports = _ports(node.op.signature) if isinstance(node.op, (RoleCall, FunctionCall)) else _fields(node.op)
    for position, (port, operand) in enumerate(node.arguments):
        if not isinstance(operand, Ref) or (inference.misplaced and (node.id, port) in inference.misplaced):
            continue
        source, name, value = operand.node, operand.column, inference.values[operand.node]
        formal, row = ports.get(port, (None, None))
        if isinstance(value, RecordValue):
            record = formal if isinstance(formal, RecordType) else value.type
            declared = columns_read(value.type, record) if name is None else _column(value.type, name)
            rows = value.rows
        elif isinstance(value, (ColumnSpec, ObjSpec)) and name is None:
            declared, rows = ((None, value, inner_dims(value)),), value.dims[0]
        else:
            continue
        columns = tuple(
            RowColumn(port=port, node=source, name=name, row=row, rows=rows, spec=spec, inner=inner)
            for name, spec, inner in declared
        )
        if columns:
            inner = tuple(dict.fromkeys(dim for column in columns for dim in column.inner))
            reads.append(Reads(position, columns, inner))
    return tuple(reads)


def row_columns(inference: Inference, node: Node) -> list[RowColumn]:
    """The columns with rows that a call reads, or from which a record is built."""
    return [column for reads in reads_of(inference, node) for column in reads.columns]


DeclaredColumn: TypeAlias = "tuple[str | None, ColumnSpec | ObjSpec, tuple[Any, ...]]"
"""The name of a column with rows (None for a value that is a column), its declaration, and its dims after the rows."""


@lru_cache(maxsize=1024)  # few kinds of records, read many times
def columns_read(have: RecordType, formal: RecordType) -> tuple[DeclaredColumn, ...]:
    """The columns with rows that a reader of one record gets of another."""
    names = schema(have.record).fields.keys()
    return tuple(column for name in schema(formal.record).fields if name in names for column in _column(have, name))


@lru_cache(maxsize=1024)
def _column(kind: RecordType, name: str) -> tuple[DeclaredColumn, ...]:
    """A column of a record, if it has rows."""
    spec = schema(kind.record).fields[name]
    return ((name, spec, inner_dims(spec)),) if isinstance(spec, (ColumnSpec, ObjSpec)) else ()


def inner_dims(spec: ColumnSpec | ObjSpec) -> tuple[Any, ...]:
    """The dims of a column after its rows."""
    return tuple(atom for size in spec.dims[1:] for atom in size.atoms if isinstance(atom, type))


_Formals: TypeAlias = "Mapping[str, tuple[PortType, Size | None]]"
"""By port the declared type and its row dim."""


@lru_cache(maxsize=1024)
def _ports(signature: Signature) -> _Formals:
    return {port.name: (port.type, signature_rows(port.type)) for port in signature.ports}


@lru_cache(maxsize=1024)
def _fields(op: Derived) -> _Formals:
    fields = schema(op.record).fields if isinstance(op, Pack) else {}
    return {name: (spec, signature_rows(spec)) for name, spec in fields.items()}
