"""Guards around a running body: what it was given is shared with other readers, and must stay as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column


@contextmanager
def inputs_unchanged(label: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Refuse that a body writes into a column which it was given.

    Whether another reader would see the change depends on where the roles are placed, and placement never changes a
    result. Tensors count their in-place operations, those through views too; only writes around torch (``.numpy()``)
    escape.

    Raises:
        WiringError: HF703 naming the argument and the column.
    """
    before = [(where, tensor, tensor._version) for where, tensor in _tensors(arguments)]
    yield
    for (argument, column), tensor, version in before:
        if tensor._version != version:
            what = f"column '{column}' of its argument '{argument}'" if column else f"its argument '{argument}'"
            raise WiringError(
                "HF703", f"'{label}' wrote into {what} in place; other readers share it: .clone() it first"
            )


def _tensors(arguments: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    for name, value in arguments.items():
        for part in value if isinstance(value, (PerRank, PerStage)) else (value,):
            for column, tensor in _columns(part):
                # Tensors made in inference mode have no counter.
                if hasattr(tensor, "_version") and not tensor.is_inference():
                    yield (name, column), tensor


def _columns(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Batch):
        return value.__hf_columns__.items()
    return (("", value._value),) if isinstance(value, Column) else ()
