"""Checks of the values in a column: objects of the declared type, and numbers that are declared finite."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.fits import fits_value, surely_fit
from hfdsl.graph.signatures import VALUE, ListType, PortType, RecordType, Signature
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import Column, ColumnSpec, Obj, ObjSpec
from hfdsl.types.ragged import Jagged


def raw_columns(value: Any) -> Mapping[str, Any]:
    """The raw columns of a record or of a loose tensor column, whose name is empty."""
    if isinstance(value, Batch):
        return value.__hf_columns__
    return {"": value._value} if isinstance(value, Column) else {}


def check_objects(label: str, returns: PortType, result: Any, where: str) -> None:
    """Check the objects of a result against the types that its columns declare; uncertain ones pass.

    Raises:
        WiringError: HF805 naming the body, the column, the row and the object.
    """
    columns: Mapping[str, Any] = {"": result._value} if isinstance(result, Obj) else {}
    fields: Mapping[str, Any] = {"": returns}
    if isinstance(result, Batch):
        columns, fields = result.__hf_columns__, schema(type(result)).fields
    for name, objects in columns.items():
        spec = fields.get(name)
        if not isinstance(spec, ObjSpec) or objects is None or surely_fit(objects, spec.type):
            continue
        for row, value in enumerate(objects):
            if not fits_value(value, spec.type):
                column = f"column '{name}'" if name else "an object"
                got = f"the {type(value).__name__} {reprlib.repr(value)}"
                raise WiringError(
                    "HF805", f"'{label}' returned {column} with {got} in row {row} {where}; it is declared {spec}"
                )


def check_finite_arguments(
    label: str, signature: Signature, arguments: Mapping[str, Any], row_name: Callable[[int], str]
) -> None:
    """Hold the arguments of a call to ``hf.finite`` where its ports declare it; ``row_name`` names a row of them.

    Raises:
        WiringError: HF820 naming the body, the argument and the first row with a NaN or an infinity.
    """
    for port, names in _finite_ports(signature):
        value = arguments.get(port)
        for entry in value if isinstance(value, (PerRank, PerStage)) else (value,):
            _refuse_infinite(label, names, raw_columns(entry), f"received, in its argument '{port}',", row_name)


def check_finite_result(
    label: str, signature: Signature, columns: Mapping[str, Any], row_name: Callable[[int], str]
) -> None:
    """Check the raw columns of a result that are declared ``hf.finite``; errors as for the arguments."""
    _refuse_infinite(label, _finite_result(signature), columns, "returned", row_name)


def _refuse_infinite(
    label: str, names: Sequence[str], columns: Mapping[str, Any], verb: str, row_name: Callable[[int], str]
) -> None:
    for name in names:
        raw = columns.get(name)
        flat = raw.values if isinstance(raw, Jagged) else raw
        if flat is None or bool(flat.isfinite().all()):
            continue
        place = (~flat.isfinite()).nonzero()[0].tolist()
        number = flat[tuple(place)].item()
        if isinstance(raw, Jagged):
            row = int((raw.offsets <= place[0]).sum()) - 1
            place = [row, place[0] - int(raw.offsets[row]), *place[1:]]
        column = f" in column '{name}'" if name else ""
        index = f", index {place[1:]}" if place[1:] else ""
        raise WiringError(
            "HF820", f"'{label}' {verb} {number}{column} at {row_name(place[0])}{index}; it is declared finite"
        )


# Every call asks, and few programs declare any. By signature, since equal columns may differ in this.


@lru_cache(maxsize=1024)
def _finite_ports(signature: Signature) -> tuple[tuple[str, tuple[str, ...]], ...]:
    names = {port.name: _finite_columns(port.type) for port in signature.ports}
    return tuple((port, columns) for port, columns in names.items() if columns)


@lru_cache(maxsize=1024)
def _finite_result(signature: Signature) -> tuple[str, ...]:
    return _finite_columns(signature.returns)


def _finite_columns(kind: PortType) -> tuple[str, ...]:
    kind = kind.inner if isinstance(kind, ListType) else kind
    fields = schema(kind.record).fields if isinstance(kind, RecordType) else {VALUE: kind}
    return tuple(name for name, spec in fields.items() if isinstance(spec, ColumnSpec) and spec.finite)
