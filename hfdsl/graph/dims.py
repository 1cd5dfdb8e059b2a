"""The dims of a traced program."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.graph.program import Graph, Queue
from hfdsl.graph.signatures import ListType, PortType, RecordType, StaticType
from hfdsl.types.batches import schema
from hfdsl.types.columns import FieldSpec
from hfdsl.types.dims import Dim


def program_dims(graph: Graph) -> Iterator[type[Dim]]:
    """The dims in the records and columns of a program, and of the batches of its queues."""
    for node in graph.nodes:
        if isinstance(node.op, Queue) and isinstance(node.op.rows, type):
            yield node.op.rows
        for spec in _specs(node.result):
            for size in spec.dims:
                yield from (atom for atom in size.atoms if isinstance(atom, type))


def _specs(kind: PortType) -> Iterator[FieldSpec]:
    match kind:
        case RecordType(record):
            yield from schema(record).fields.values()
        case ListType(_, inner):
            yield from _specs(inner)
        case StaticType():
            return
        case _:
            yield kind
