"""Checks around a running body: its arguments stay unchanged, and its result is of the declared type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

from hfdsl.errors import WiringError
from hfdsl.graph.signatures import PortType, RecordType, Signature
from hfdsl.graph.tensor_writes import Mark
from hfdsl.graph.value_checks import check_objects, raw_columns
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.types.batches import schema
from hfdsl.types.columns import Column, ColumnSpec, Metric, MetricSpec, Obj, ObjSpec
from hfdsl.types.dims import Size, constant, solve
from hfdsl.types.ragged import Jagged
from hfdsl.types.values import without_values


@contextmanager
def inputs_unchanged(label: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Refuse that a body writes into a column which it was given.

    Whether another reader would see the change depends on where the roles are placed, and placement never changes a
    result. ``Mark`` says which writes are seen.

    Raises:
        WiringError: HF703 naming the argument and the column.
    """
    before = [
        (argument, column, tensor, Mark.of(tensor))
        for argument, value in arguments.items()
        for part in (value if isinstance(value, (PerRank, PerStage)) else (value,))
        for column, tensor in raw_columns(part).items()
    ]
    yield
    for argument, column, tensor, mark in before:
        if mark.differs(tensor):
            location = f"column '{column}' of its argument '{argument}'" if column else f"its argument '{argument}'"
            raise WiringError(
                "HF703", f"'{label}' wrote into {location} in place; other readers share it: .clone() it first"
            )


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
            storage = None if isinstance(raw, Jagged) else without_values(raw)
            got, right = storage or got, right and storage is None
    if not right:
        raise WiringError("HF805", f"'{label}' declares {returns} and returned {got} {where}{hint}")
    check_objects(label, returns, result, where)


def check_widths(
    label: str,
    signature: Signature,
    arguments: Mapping[str, Any],
    result: Any,
    where: str,
    planned: Mapping[Any, Size] | None = None,
) -> None:
    """Hold the widths of a result against those of the arguments, and against those that a plan has for dims.

    A body that takes ``f32[B, R]`` with rows of 6 and returns ``f32[B, R]`` has rows of 6 there, and so has one of a
    plan for R = 6 that takes no R. A ragged row may be shorter. A dim that neither has, or of which the arguments have
    two widths, is not compared; nor are rows, which others count.

    Raises:
        WiringError: HF805 naming the body, the column, the dim and both numbers.
    """
    expected = [*_widths(signature.returns, result), *(_longest_rows(signature.returns, result) if planned else ())]
    if not expected:
        return
    argument_widths = _known_widths(signature, arguments)
    widths = {**(planned or {}), **argument_widths}
    for column, dim, length, at_most in sorted(expected, key=lambda width: len(width[1].atoms)):
        wanted = dim.substitute(widths).value
        if wanted is None or length == wanted or (at_most and length < wanted):
            continue
        got = f"column '{column}' of width {length}" if column else f"a width of {length}"
        if at_most:
            got = f"column '{column}' with a row of {length}" if column else f"a row of {length}"
        source = "its arguments have" if argument_widths.keys() >= set(dim.atoms) else "the plan has"
        why = f"{source} {dim} = {wanted}" if dim.atoms else f"it declares {wanted}"
        raise WiringError("HF805", f"'{label}' returned {got} {where}, where {why}")


def _known_widths(signature: Signature, arguments: Mapping[str, Any]) -> dict[Any, Size]:
    """The width of each dim that the arguments determine, from single dims to sums and products of them."""
    measured = [
        (dim, length) for port in signature.ports for _, dim, length, _ in _widths(port.type, arguments.get(port.name))
    ]
    widths: dict[Any, Size] = {}
    ambiguous = set[Any]()
    for dim, length in sorted(measured, key=lambda width: len(width[0].atoms)):
        widths |= solve(dim, constant(length), widths) or {}
        if dim.substitute(widths).value not in (None, length):
            ambiguous |= set(dim.atoms)
    return {atom: size for atom, size in widths.items() if atom not in ambiguous}


_Width: TypeAlias = "tuple[str, Size, int, bool]"
"""A column, one of its inner dims, how long that is, and whether the dim bounds it."""


def _widths(kind: PortType, value: Any) -> Iterator[_Width]:
    """The widths of a value: its dense columns, their inner dims that are not those of rows, and how long they are."""
    for name, spec in _column_specs(kind):
        raw = raw_columns(value).get(name)
        if raw is not None and not spec.ragged and len(raw.shape) == len(spec.dims):
            rows = set(spec.dims[0].atoms)
            for dim, length in zip(spec.dims[1:], raw.shape[1:], strict=True):
                if rows.isdisjoint(dim.atoms):
                    yield name, dim, int(length), False


def _longest_rows(kind: PortType, value: Any) -> Iterator[_Width]:
    """The longest row of each ragged column of a value, which its dim bounds."""
    for name, spec in _column_specs(kind):
        raw = raw_columns(value).get(name)
        if isinstance(raw, Jagged) and spec.ragged and _bounds_no_rows(spec):
            yield name, spec.dims[1], int(raw.shape[1]), True


def _bounds_no_rows(spec: ColumnSpec) -> bool:
    """Whether the first inner dim of a ragged column is another than that of its rows."""
    return set(spec.dims[0].atoms).isdisjoint(spec.dims[1].atoms)


@lru_cache(maxsize=1024)
def _column_specs(kind: PortType) -> tuple[tuple[str, ColumnSpec], ...]:
    """The columns of a type that have other dims than rows."""
    fields = schema(kind.record).fields if isinstance(kind, RecordType) else {"": kind}
    return tuple((name, spec) for name, spec in fields.items() if isinstance(spec, ColumnSpec) and len(spec.dims) > 1)
