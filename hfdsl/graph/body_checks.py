"""Checks around a running body: what it was given stays as it is, and what it gives is what it declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.signatures import PortType, RecordType
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column, ColumnSpec, Metric, MetricSpec, Obj, ObjSpec
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
