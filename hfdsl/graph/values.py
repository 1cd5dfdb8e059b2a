"""The values of a program during inference, and the ways in which a value can mismatch its port."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from hfdsl.graph.program import Constant, Operand, Ref
from hfdsl.graph.signatures import PortType, RecordType, StaticType
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, ObjSpec
from hfdsl.types.dims import Size

LOST: Any = TypeVar("?")  # type: ignore[misc]  # never a user's own: its name is what messages show
"""A dim of a value that a mistake hides; it fits everywhere."""


@dataclass(frozen=True, slots=True)
class RecordValue:
    """A record with this many rows (None for a record of metrics)."""

    type: RecordType
    rows: Size | None

    def __str__(self) -> str:
        return f"{self.type}" if self.rows is None else f"{self.type} of {self.rows} rows"


@dataclass(frozen=True, slots=True)
class ListValue:
    """One value per rank, or per stage: ``kind`` is ``PerRank`` or ``PerStage``, ``inner`` what each entry is."""

    kind: str
    inner: Value

    def __str__(self) -> str:
        return f"{self.kind}[{self.inner}]"


Value: TypeAlias = "RecordValue | FieldSpec | ListValue | StaticType | None"  # None: hidden by a reported mistake


class MismatchKind(Enum):
    """The ways in which a value can fail to fit its port."""

    RECORD = "another record"
    DTYPE = "another dtype"
    RANK = "another number of dims"
    DIM = "another dim"
    ROWS = "another number of rows"
    ROWS_UNKNOWN = "a number of rows that may differ"
    LIST = "a list of ranks' values where a whole one is taken, or the reverse"
    VALUE = "a Python value where a record or column is taken, or the reverse"
    UNSOLVED = "a dim that cannot be solved for"
    RAGGED = "a ragged column where every row has one length, or the reverse"
    ABSENT = "a column that may be absent where one is needed"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A value wired to a port that it does not fit."""

    kind: MismatchKind
    node: int
    port: str
    formal: PortType
    actual: Value | Constant
    source: Ref | None
    detail: tuple[tuple[str, str], ...] = ()  # named facts for the message, in order
    sizes: tuple[Size, ...] = ()  # of two dims or numbers of rows: what the port needs and what it gets


def operand_value(values: Any, operand: Operand) -> Value:
    """The value of a node or of one of its columns, with the row dim that it has there."""
    if not isinstance(operand, Ref):
        return None
    value = values[operand.node]
    if operand.column is None or not isinstance(value, RecordValue):
        return value if operand.column is None else None
    spec = schema(value.type.record).fields[operand.column]
    if isinstance(spec, ColumnSpec) and value.rows is not None:
        return _with_rows(spec, value.rows)
    return replace(spec, row=value.rows) if isinstance(spec, ObjSpec) and value.rows is not None else spec


@lru_cache(maxsize=1024)  # few columns, read many times
def _with_rows(spec: ColumnSpec, rows: Size) -> ColumnSpec:
    return replace(spec, dims=(rows, *spec.dims[1:]))
