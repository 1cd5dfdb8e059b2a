"""The raw values of columns, validated against their declarations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.types.columns import Column, ColumnSpec, FieldSpec, Metric, MetricSpec, Obj, ObjSpec, empty_values, number
from hfdsl.types.dtypes import BY_TORCH_NAME, DType
from hfdsl.types.ragged import Jagged, jagged_of


def plain(record: type, name: str, value: Any, spec: FieldSpec) -> Any:
    """Validate the value of a column: the raw tensor, list or number, of the declared dtype and rank.

    Raises:
        WiringError: HF206 kind, HF210 rank, HF214 ragged or dense, HF220 dtype, HF231 absent.
    """
    if isinstance(value, (Column, Obj, Metric)):
        value = value._value
    if isinstance(spec, ColumnSpec) and _is_dense(value, spec):
        return value
    where, got = f"column '{name}' of '{record.__name__}'", type(value).__name__
    if isinstance(spec, MetricSpec):
        return number(value, where)
    if value is None:
        if spec.optional:
            return None
        raise WiringError("HF231", f"{where} is declared {spec}, which is not optional, and got None")
    if isinstance(spec, ObjSpec):
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise WiringError("HF206", f"{where} takes a list with one object per row, got {got}")
        return list(value)
    return _tensor(value, spec, where)


def _tensor(value: Any, spec: ColumnSpec, where: str) -> Any:
    """The raw tensor of a column, dense or ragged as it is declared."""
    got = type(value).__name__
    if spec.ragged or isinstance(value, Jagged) or getattr(value, "is_nested", False):
        value = _ragged(value, spec, where)
    dtype = _dtype_of(value)
    if not hasattr(value, "untyped_storage"):
        raise WiringError("HF206", f"{where} takes a torch.Tensor as {spec}, got {got}")
    differs = f"{where} is declared {spec} and got {actual(value, spec)}"
    if not isinstance(value, Jagged) and (storage := without_values(value)) is not None:
        raise WiringError("HF206", f"{where} takes a dense tensor as {spec}, got {storage}")
    if dtype is not spec.dtype:
        raise WiringError("HF220", f"{differs}; convert it with .to(torch.{spec.dtype.torch_name})")
    if value.dim() != len(spec.dims):
        raise WiringError("HF210", f"{differs}: rank {value.dim()} where {len(spec.dims)} is needed")
    return value


def _is_dense(value: Any, spec: ColumnSpec) -> bool:
    """Whether a value is the common case: a dense tensor of the declared dtype and rank."""
    return (
        not spec.ragged
        and hasattr(value, "untyped_storage")
        and not getattr(value, "is_nested", True)  # one of rows of several lengths has no such mark
        and _dtype_of(value) is spec.dtype
        and value.dim() == len(spec.dims)
        and without_values(value) is None
    )


def without_values(tensor: Any) -> str | None:
    """The reason why a tensor has no dense values to send: it is sparse, or a meta tensor; None if it has them.

    A nested tensor counts as having values.
    """
    if tensor.is_meta:
        return "a meta tensor, which has a shape and no values"
    if getattr(tensor, "is_nested", False) or _is_strided(tensor.layout):
        return None
    return f"one of layout {tensor.layout}: .to_dense() makes it dense"


@cache  # by torch's few layouts
def _is_strided(layout: object) -> bool:
    return str(layout) == "torch.strided"


def _dtype_of(value: Any) -> type[DType] | None:
    return _dtype(getattr(value, "dtype", None))


@cache  # by torch's few dtypes
def _dtype(of_torch: object) -> type[DType] | None:
    return BY_TORCH_NAME.get(str(of_torch).removeprefix("torch."))


def _ragged(value: Any, spec: ColumnSpec, where: str) -> Jagged:
    """The rows of a ragged column, from a list of them or a nested tensor."""
    rows = jagged_of(value, lambda: empty_values(spec.dtype, len(spec.dims) - 1))
    if rows is None and not hasattr(value, "untyped_storage"):
        raise WiringError(
            "HF206", f"{where} takes a list with one tensor per row as {spec}, got {type(value).__name__}"
        )
    if rows is None or not spec.ragged:
        got, hint = ("dense", "give a list with one tensor per row") if spec.ragged else ("ragged", "pad its rows")
        raise WiringError("HF214", f"{where} is declared {spec} and got a {got} tensor; {hint}")
    return (
        rows if len(rows) or rows.dim() == len(spec.dims) else Jagged.none(empty_values(spec.dtype, len(spec.dims) - 1))
    )


def actual(value: Any, spec: FieldSpec) -> str:
    """Describe the dtype and shape of a raw value, for a message."""
    if value is None:
        return "absent"
    if isinstance(spec, ColumnSpec):
        dtype = _dtype_of(value)
        name = dtype.name if dtype else str(getattr(value, "dtype", type(value).__name__))
        shape = [f"~{n}" if i == 1 and isinstance(value, Jagged) else str(n) for i, n in enumerate(value.shape)]
        return f"{name}[{', '.join(shape)}]"
    return f"{len(value)} objects" if isinstance(spec, ObjSpec) else repr(value)
