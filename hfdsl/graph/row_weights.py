"""Row weights: the column by which a method's rows are balanced, and whether it can be."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.graph.program import Derived, Graph, Node, Ref, RoleCall
from hfdsl.graph.signatures import VALUE, Port, PortType, RecordType, Signature
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, MetricSpec, ObjSpec
from hfdsl.types.dtypes import FLOATS


def balancing(signature: Signature) -> Iterator[tuple[Port, str, FieldSpec]]:
    """The columns that a method's ``balance=`` may mean, each with its port: exactly one if it is valid."""
    name = signature.registration.balance if signature.registration else None
    return iter(()) if name is None else named_columns(signature, name)


def named_columns(signature: Signature, name: str) -> Iterator[tuple[Port, str, FieldSpec]]:
    """The columns of the arguments that ``name`` may mean, ``"mask"`` or ``"rollout.mask"``, each with its port."""
    owner, _, column = name.rpartition(".")
    for port in signature.ports:
        if isinstance(port.type, RecordType) and owner in ("", port.name):
            if (spec := schema(port.type.record).fields.get(column)) is not None:
                yield port, column, spec
        elif isinstance(port.type, (ColumnSpec, ObjSpec, MetricSpec)) and port.name == name:
            yield port, VALUE, port.type


def weighs(spec: PortType) -> bool:
    """Whether a column can weigh its rows: truth values and whole numbers by their sum, ragged rows by length."""
    return isinstance(spec, ColumnSpec) and (spec.ragged or not issubclass(spec.dtype, FLOATS))


def row_weights_read(graph: Graph, node: Node) -> Ref | None:
    """The column that a call's rows are balanced by, followed back through records; None if there is none."""
    if not isinstance(node.op, RoleCall):
        return None
    for port, column, _ in balancing(node.op.signature):
        operand = dict(node.arguments).get(port.name)
        return (
            _source_column(graph, Ref(operand.node, operand.column or column or None))
            if isinstance(operand, Ref)
            else None
        )
    return None


def _source_column(graph: Graph, ref: Ref) -> Ref | None:
    node = graph.nodes[ref.node]
    if not (isinstance(node.op, Derived) and node.op.same_rows):
        return ref
    inner = node.source(ref.column or VALUE)
    return _source_column(graph, inner) if isinstance(inner, Ref) else None
