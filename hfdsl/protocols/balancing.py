"""Balancing where the payload is: the rows of a call's arguments ordered by weight, and its output put back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hfdsl.errors import ProtocolError, SizeError
from hfdsl.protocols import split
from hfdsl.protocols.filtering import runs
from hfdsl.protocols.partitioning import partition_evenly
from hfdsl.protocols.split import Pad, Site, add_rows, container_of, rows_of
from hfdsl.types.batches import Batch
from hfdsl.types.ragged import Jagged
from hfdsl.types.weights import row_weights


def balanced_order(weights: Sequence[int], chunks: int, group: int, added: int, pad: Pad | None) -> tuple[int, ...]:
    """The order in which rows are given to chunks, with as many pad rows; nothing where they stay in their order.

    Pad rows weigh what the rows weigh that they repeat; weights below 0 count as none.

    >>> balanced_order([3, 3, 1, 1], 2, 1, 0, None), balanced_order([2, 2, 2], 2, 1, 1, "cycle")
    ((0, 3, 1, 2), ())
    """
    every = add_rows([max(0, weight) for weight in weights], added, pad)
    units = partition_evenly([sum(every[first : first + group]) for first in range(0, len(every), group)], chunks)
    if units == tuple(range(len(units))):
        return ()
    return tuple(unit * group + i for unit in units for i in range(group))


def weights_of(items: Iterable[tuple[int | str, Any]], balance: str, site: Site) -> list[int] | None:
    """What rows weigh by the column that ``balance`` names; None where it is absent.

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
    made: list[Any]
    match container_of(column):
        case split.LIST:
            made = column
        case split.ARRAY:
            made = column.reshape(len(column), -1).sum(1).tolist()
        case split.TENSOR:
            made = row_weights(column).tolist()
        case _:
            made = row_weights(column).tolist() if isinstance(column, Jagged) else [None]
    if not all(isinstance(weight, int) for weight in made):
        what = f"{site.method} is balanced by {balance!r}"
        raise ProtocolError("HF425", f"{what}, which has no whole number for each row")
    return [int(weight) for weight in made]


def reordered(value: Any, order: Sequence[int]) -> Any:
    """The rows of a container in another order.

    >>> reordered(["a", "b", "c"], [2, 0, 1])
    ['c', 'a', 'b']
    """
    container = container_of(value)
    if container is None:
        return value
    return container.join([container.cut(value, first, last) for first, last in runs(order)])


def put_back(value: Any, order: Sequence[int], what: str = "output") -> Any:
    """A joined output with its rows where those were that they were made of; several of each row stay together.

    Raises ``SizeError`` (HF310) where nobody can say which of them came of which row.

    >>> put_back(["c", "a", "b"], [2, 0, 1])
    ['a', 'b', 'c']
    """
    try:
        rows = rows_of(value) if order and value is not None else 0
    except ProtocolError:
        return value  # metrics: reduced over all rows that the ranks saw
    if not rows:
        return value
    if rows % len(order):
        raise SizeError(
            "HF310",
            f"{what} has {rows} rows for {len(order)} rows that were balanced by their weights: which belongs to which "
            "is unknown; return a fixed number of rows per input row",
        )
    each, places = rows // len(order), sorted(range(len(order)), key=order.__getitem__)
    return reordered(value, [place * each + i for place in places for i in range(each)])
