"""The weights by which ``balance=`` balances the rows of a call outside of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hfdsl.errors import ProtocolError
from hfdsl.protocols import split
from hfdsl.protocols.split import Site, container_of
from hfdsl.types.batches import Batch
from hfdsl.types.ragged import Jagged
from hfdsl.types.weights import row_weights


def weights_of(items: Iterable[tuple[int | str, Any]], balance: str, site: Site) -> list[int] | None:
    """The row weights of the column that ``balance`` names; None if it is absent.

    Raises ``ProtocolError`` (HF425) where no argument has it, or it does not weigh rows.
    """
    owner, _, column = balance.rpartition(".")
    for key, value in items:
        name = key if isinstance(key, str) else site.parameters[key] if key < len(site.parameters) else ""
        if isinstance(value, Batch) and owner in ("", name) and column in value.__hf_columns__:
            return _numbers(value.__hf_columns__[column], balance, site)
        if name == balance:
            return _numbers(value, balance, site)
    raise ProtocolError("HF425", f"{site.method} is balanced by {balance!r}, and no argument of this call has it")


def _numbers(column: Any, balance: str, site: Site) -> list[int] | None:
    if column is None:
        return None
    weights: list[Any]
    match container_of(column):
        case split.LIST:
            weights = column
        case split.ARRAY:
            weights = column.reshape(len(column), -1).sum(1).tolist()
        case split.TENSOR:
            weights = row_weights(column).tolist()
        case split.NESTED:
            weights = row_weights(Jagged.of(list(column.unbind()))).tolist()
        case _:
            weights = row_weights(column).tolist() if isinstance(column, Jagged) else [None]
    if not all(isinstance(weight, int) for weight in weights):
        subject = f"{site.method} is balanced by {balance!r}"
        raise ProtocolError("HF425", f"{subject}, which has no whole number for each row")
    return [int(weight) for weight in weights]
