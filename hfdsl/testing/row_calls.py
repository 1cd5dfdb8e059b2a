"""Calls of a function on some rows of its arguments, as in a run: random streams follow rows, results are checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.body_checks import check_result, check_widths
from hfdsl.graph.signatures import VALUE, PortType, RecordType, Signature
from hfdsl.plan.reading import to_columns
from hfdsl.protocols.call import Call, in_call, seeded
from hfdsl.types.batches import Batch, rebuild, schema
from hfdsl.types.columns import Column, ColumnSpec, FieldSpec, Obj, ObjSpec
from hfdsl.types.dims import Size, constant, solve

__tracebackhide__ = True  # pytest shows the user's own lines


@contextmanager
def on_rank(rank: int, rows: Sequence[int]) -> Iterator[None]:
    """Within this, a body has the call and the random streams of a rank with these rows of the batch."""
    call = Call(seed=0, step=0, node=0, rank=rank, row_count=len(rows), balanced_rows=tuple(rows))
    with seeded(call), in_call(call):
        yield


def columns_on(
    signature: Signature, arguments: Mapping[str, Any], rows: Sequence[int], rank: int = 0
) -> dict[str, Any]:
    """The columns that the function gives on some rows of its arguments; of metrics, nothing.

    Raises:
        WiringError: HF805 for a result of another type, or with another number of rows, than the function declares.
    """
    selected = {name: picked(value, rows) for name, value in arguments.items()}
    with on_rank(rank, rows):
        result = signature.body(**selected)
    where = f"on {counted(len(rows))}"
    check_result(signature.name, signature.returns, result, where)
    check_widths(signature.name, signature, selected, result, where)
    kept = columns_with_rows(signature.returns)
    columns = {name: raw for name, raw in to_columns(result).items() if name in kept} if kept else {}
    _check_row_counts(signature, selected, columns, where)
    return columns


def _check_row_counts(
    signature: Signature, arguments: Mapping[str, Any], columns: Mapping[str, Any], where: str
) -> None:
    """Hold the rows of a result against those that its dims declare, as far as the arguments determine them."""
    sizes: dict[Any, Size] = {}
    for port in signature.ports:
        value = arguments.get(port.name)
        raw_columns = to_columns(value) if isinstance(value, (Batch, Column, Obj)) else {}
        for name, spec in columns_with_rows(port.type).items():
            if raw_columns.get(name) is not None:
                sizes |= solve(spec.dims[0], constant(len(raw_columns[name])), sizes) or {}
    for name, spec in columns_with_rows(signature.returns).items():
        declared = spec.dims[0].substitute(sizes).value
        if columns[name] is not None and declared is not None and len(columns[name]) != declared:
            subject = f"column '{name}' with " if name else ""
            returned = f"'{signature.name}' returned {subject}{counted(len(columns[name]))} {where}"
            raise WiringError("HF805", f"{returned}, where {spec} has {declared}")


def columns_with_rows(kind: PortType) -> Mapping[str, ColumnSpec | ObjSpec]:
    """The columns of a type that have rows, which metrics and plain values have not."""
    fields: Mapping[str, FieldSpec | PortType]
    fields = schema(kind.record).fields if isinstance(kind, RecordType) else {VALUE: kind}
    return {name: spec for name, spec in fields.items() if isinstance(spec, (ColumnSpec, ObjSpec)) and spec.dims}


def picked(value: Any, rows: Sequence[int]) -> Any:
    """Rows of an argument; a value without rows itself."""
    if isinstance(value, (Batch, Column, Obj)):
        raw = {name: picked_rows(column, rows) for name, column in to_columns(value).items()}
        return rebuild(type(value), raw) if isinstance(value, Batch) else type(value)(raw[VALUE])
    return value


def picked_rows(raw: Any, rows: Sequence[int]) -> Any:
    """Rows of a raw column."""
    if raw is None or not hasattr(raw, "__len__"):
        return raw
    return [raw[row] for row in rows] if isinstance(raw, list) else raw[list(rows)]


def counted(rows: int) -> str:
    """A number of rows, in words."""
    return "1 row" if rows == 1 else f"{rows} rows"
