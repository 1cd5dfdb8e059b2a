"""Sizes of a step: the size of each dim of the caller's inputs, and how many rows every value has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hfdsl.errors import SizeError
from hfdsl.graph.program import Input, Node
from hfdsl.graph.values import RecordValue, Value
from hfdsl.plan.plan import Plan
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import KeptGroups, Size, constant, evaluate, solve


class _Length(NamedTuple):
    """The length of a column in a dim, or that of its longest ragged row, of which the dim is the bound."""

    input: str
    column: str
    dim: Size
    length: int
    is_bound: bool


def bind_sizes(plan: Plan, inputs: Mapping[int, Batch]) -> dict[Any, int]:
    """The size of every dim of the inputs, checked against the sizes that the plan was compiled for.

    Raises:
        SizeError: HF302 if an input disagrees with the plan or with another input.
    """
    sizes: dict[Any, int] = dict(plan.dims)
    origin: dict[Any, str] = dict.fromkeys(plan.dims, "the plan was compiled for")
    for measured in _lengths(plan, inputs):
        name, column, dim, length, is_bound = measured
        if is_bound:
            _check_bound(measured, sizes)
            continue
        bound = {atom: constant(size) for atom, size in sizes.items()}
        for atom, size in (solve(dim, constant(length), bound) or {}).items():
            sizes[atom] = int(size.value or 0)
            origin[atom] = f"input '{name}' has"
        if all(atom in sizes for atom in dim.atoms) and evaluate(dim, sizes) != length:
            why = ", ".join(f"{origin[atom]} {atom.__name__} = {sizes[atom]}" for atom in dim.atoms)
            raise SizeError(
                "HF302", f"input '{name}': column '{column}' has {length} where {dim} = {evaluate(dim, sizes)} ({why})"
            )
    return sizes


def _lengths(plan: Plan, inputs: Mapping[int, Batch]) -> list[_Length]:
    """The lengths of the inputs' columns.

    Single dims come first, then sums and products of dims, then upper bounds, so that each can use those before it.
    """
    measured: list[_Length] = []
    for number, batch in inputs.items():
        node = plan.node(number)
        name, rows = node.label, node.op.rows if isinstance(node.op, Input) else None
        for column, spec in schema(type(batch)).fields.items():
            if isinstance(spec, MetricSpec):
                continue
            value = batch.__hf_columns__[column]
            if value is None:
                continue
            if not len(value):
                raise SizeError("HF302", f"input '{name}' has no rows: every size is at least 1")
            lengths = value.shape if isinstance(spec, ColumnSpec) else (len(value),)[: len(spec.dims)]
            ragged = isinstance(spec, ColumnSpec) and spec.ragged
            dims = spec.dims if rows is None else (rows, *spec.dims[1:])
            pairs = enumerate(zip(dims, lengths, strict=True))
            measured += [_Length(name, column, dim, int(length), ragged and i == 1) for i, (dim, length) in pairs]
    return sorted(measured, key=lambda length: (length.is_bound, len(length.dim.atoms)))


def _check_bound(longest: _Length, sizes: Mapping[Any, int]) -> None:
    """Check the longest row of a ragged column against its bound, if that is known."""
    name, column, bound, length, _ = longest
    if all(atom in sizes for atom in bound.atoms) and length > evaluate(bound, sizes):
        most = f"{bound} = {evaluate(bound, sizes)}"
        raise SizeError("HF302", f"input '{name}': column '{column}' has a row of {length}, more than {most}")


def rows_in(value: Value) -> Size | None:
    """The rows of a record, column or list of objects; None for what has none."""
    if isinstance(value, RecordValue):
        return value.rows
    return value.dims[0] if isinstance(value, (ColumnSpec, ObjSpec)) else None


def row_dims(plan: Plan) -> tuple[Any, ...]:
    """The dims that numbers of rows depend on."""
    sizes = [size for value in plan.inference.values if (size := rows_in(value)) is not None]
    return tuple(dict.fromkeys(atom for size in sizes for atom in size.atoms if not isinstance(atom, KeptGroups)))


def row_count(node: Node, size: Size | None, sizes: Mapping[Any, int]) -> int | None:
    """The number of rows of a node's value for these sizes; None if one is unknown.

    Raises:
        SizeError: HF303 if it is not whole, or negative; a filter may keep none.
    """
    if size is None or any(atom not in sizes for atom in size.atoms):
        return None
    count = evaluate(size, sizes)
    if count.denominator != 1 or count < 0:
        where = f"'{node.label}' in line {node.span.line}"
        raise SizeError("HF303", f"{where} has {size} = {count} rows, which is not a whole number of at least 0")
    return int(count)
