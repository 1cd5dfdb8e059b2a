"""Checks around a running body: what it was given stays as it is, and what it gives is what it declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.signatures import PortType, RecordType, Signature
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import Column, ColumnSpec, Metric, MetricSpec, Obj, ObjSpec
from hfdsl.types.dims import Size, constant, solve
from hfdsl.types.ragged import Jagged


@contextmanager
def inputs_unchanged(label: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Refuse that a body writes into a column which it was given.

    Whether another reader would see the change depends on where the roles are placed, and placement never changes a
    result. Tensors count their in-place operations, those through views too; only writes around torch (``.numpy()``)
    escape.

    Raises:
        WiringError: HF703 naming the argument and the column.
    """
    before = [
        (argument, column, tensor, tensor._version)
        for argument, value in arguments.items()
        for part in (value if isinstance(value, (PerRank, PerStage)) else (value,))
        for column, tensor in _columns(part).items()
        if counts_writes(tensor)
    ]
    yield
    for argument, column, tensor, version in before:
        if tensor._version != version:
            what = f"column '{column}' of its argument '{argument}'" if column else f"its argument '{argument}'"
            raise WiringError(
                "HF703", f"'{label}' wrote into {what} in place; other readers share it: .clone() it first"
            )


def versions(columns: Mapping[str, Any]) -> dict[str, int]:
    """How often each tensor among raw columns has been written; those made in inference mode do not count it."""
    return {name: tensor._version for name, tensor in columns.items() if counts_writes(tensor)}


def counts_writes(value: Any) -> bool:
    """Whether a raw column is a tensor that counts its in-place operations."""
    return hasattr(value, "_version") and not value.is_inference()


def _columns(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Batch):
        return value.__hf_columns__
    return {"": value._value} if isinstance(value, Column) else {}


_RESULTS: dict[type, type] = {ColumnSpec: Column, ObjSpec: Obj, MetricSpec: Metric}


def check_result(label: str, returns: PortType, result: Any, where: str) -> None:
    """Hold a result against the declared type: the class of a record, the dtype and number of dims of a loose column.

    Raises:
        WiringError: HF805 naming the body, and ``where`` it ran.
    """
    got, hint = type(result).__name__, ""
    kind = returns.record if isinstance(returns, RecordType) else _RESULTS.get(type(returns))
    right = kind is None or isinstance(result, kind)
    if isinstance(returns, (ColumnSpec, ObjSpec)) and returns.optional and result is None:
        return
    if isinstance(returns, ColumnSpec):
        hint = f"; wrap the tensor: hf.{returns.dtype.name}(tensor)"
        if isinstance(result, Column):
            got, hint = f"{result.tensor.dtype} of shape {tuple(result.tensor.shape)}", ""
            raw = result._value
            right = str(raw.dtype) == f"torch.{returns.dtype.torch_name}" and raw.dim() == len(returns.dims)
            right = right and isinstance(raw, Jagged) is returns.ragged
    if not right:
        raise WiringError("HF805", f"'{label}' declares {returns} and returned {got} {where}{hint}")


def check_widths(label: str, signature: Signature, arguments: Mapping[str, Any], result: Any, where: str) -> None:
    """Hold the widths of a result against those of the arguments, by the dims that both declare.

    A body that takes ``f32[B, R]`` with rows of 6 and returns ``f32[B, R]`` has rows of 6 there. A dim that the
    arguments do not have, or of which they have two widths, is not compared; nor are rows, which others count.

    Raises:
        WiringError: HF805 naming the body, the column and the dim.
    """
    expected = list(_widths(signature.returns, result))
    if not expected:
        return
    known = _known_widths(signature, arguments)
    for column, dim, length in expected:
        wanted = dim.substitute(known).value
        if wanted is not None and wanted != length and dim.value is None:
            got = f"column '{column}' of width {length}" if column else f"a width of {length}"
            raise WiringError("HF805", f"'{label}' returned {got} {where}, where its arguments have {dim} = {wanted}")


def _known_widths(signature: Signature, arguments: Mapping[str, Any]) -> dict[Any, Size]:
    """The width of each dim that the arguments determine, from single dims to sums and products of them."""
    measured = [
        (dim, length) for port in signature.ports for _, dim, length in _widths(port.type, arguments.get(port.name))
    ]
    known: dict[Any, Size] = {}
    ambiguous = set[Any]()
    for dim, length in sorted(measured, key=lambda width: len(width[0].atoms)):
        known |= solve(dim, constant(length), known) or {}
        if dim.substitute(known).value not in (None, length):
            ambiguous |= set(dim.atoms)
    return {atom: size for atom, size in known.items() if atom not in ambiguous}


def _widths(kind: PortType, value: Any) -> Iterator[tuple[str, Size, int]]:
    """The widths of a value: its columns, their inner dims that are not those of rows, and how long they are."""
    for name, spec in _column_specs(kind):
        raw = _columns(value).get(name)
        if raw is not None and len(raw.shape) == len(spec.dims):
            rows = set(spec.dims[0].atoms)
            for dim, length in zip(spec.dims[1:], raw.shape[1:], strict=True):
                if rows.isdisjoint(dim.atoms):
                    yield name, dim, int(length)


@lru_cache(maxsize=1024)
def _column_specs(kind: PortType) -> tuple[tuple[str, ColumnSpec], ...]:
    """The dense columns of a type that have other dims than rows."""
    fields = schema(kind.record).fields if isinstance(kind, RecordType) else {"": kind}
    return tuple(
        (name, spec)
        for name, spec in fields.items()
        if isinstance(spec, ColumnSpec) and not spec.ragged and len(spec.dims) > 1
    )
