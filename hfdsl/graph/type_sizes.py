"""The dims and sizes that stand in the types of ports and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from hfdsl.graph.signatures import ListType, PortType, RecordType, Signature, StaticType
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Dim, Size


def sizes_of(kind: PortType) -> Iterator[Size]:
    """The sizes that stand in a type."""
    if isinstance(kind, RecordType):
        for spec in schema(kind.record).fields.values():
            yield from spec.dims
    elif isinstance(kind, ListType):
        yield from sizes_of(kind.inner)
    elif not isinstance(kind, StaticType):
        yield from kind.dims


def quotients_of(kind: PortType) -> Iterator[Size]:
    """Every ``Div`` in the columns of a type."""
    if isinstance(kind, RecordType):
        for spec in schema(kind.record).fields.values():
            yield from () if isinstance(spec, MetricSpec) else spec.quotients
    elif isinstance(kind, ListType):
        yield from quotients_of(kind.inner)
    elif isinstance(kind, (ColumnSpec, ObjSpec)):
        yield from kind.quotients


def row_dims(kind: PortType) -> tuple[Any, ...]:
    """The dims and type variables in the rows of what a port takes."""
    if isinstance(kind, RecordType):
        row = schema(kind.record).row
        return row.atoms if row is not None else ()
    return kind.dims[0].atoms if isinstance(kind, (ColumnSpec, ObjSpec)) else ()


@lru_cache(maxsize=1024)
def dims_of(signature: Signature) -> tuple[type[Dim], ...]:
    """The dims that a signature names, in its ports and its result."""
    return dims_in([*(port.type for port in signature.ports), signature.returns])


def dims_in(kinds: Iterable[PortType]) -> tuple[type[Dim], ...]:
    """The dims that types name, each once."""
    sizes = (size for kind in kinds for size in sizes_of(kind))
    return tuple(dict.fromkeys(atom for size in sizes for atom in size.atoms if isinstance(atom, type)))
