"""Rows of raw columns: joined from the parts of several producers, picked and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.types.columns import REDUCTIONS, FieldSpec, MetricSpec
from hfdsl.types.ragged import Jagged


def join_column(spec: FieldSpec, parts: Sequence[Any]) -> Any:
    """Join one column's parts in order: rows are concatenated, a metric is reduced; of absent parts, None."""
    if isinstance(spec, MetricSpec):
        return REDUCTIONS[spec.reduction](parts)
    if not all_present("a column", parts, [f"part {number}" for number in range(len(parts))]):
        return None
    return rows_after_rows(parts)


def rows_after_rows(parts: Sequence[Any]) -> Any:
    """Concatenate the rows of all parts, each a tensor, a ragged column or a list; a single part is returned unchanged.

    >>> rows_after_rows([["a"], ["b", "c"]])
    ['a', 'b', 'c']
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    if isinstance(parts[0], Jagged):
        return Jagged.cat(parts)
    import torch

    return torch.cat(list(parts))


def all_present(subject: str, parts: Sequence[Any], producers: Sequence[str]) -> bool:
    """Whether a column is present, given its parts.

    >>> all_present("column 'x'", [[1], [2]], ["rank 0", "rank 1"])
    True

    Raises:
        WiringError: HF810 if some have it and others do not.
    """
    present = [producer for producer, part in zip(producers, parts, strict=True) if part is not None]
    absent = [producer for producer, part in zip(producers, parts, strict=True) if part is None]
    if present and absent:
        raise WiringError(
            "HF810",
            f"{subject} is present on {', '.join(present)} and absent on {', '.join(absent)}; "
            "an optional column is present for all rows or for none",
        )
    return not absent


def picked_rows(value: Any, rows: Sequence[int] | None) -> Any:
    """Some rows of a raw column, in any order; with None all of them.

    >>> picked_rows(["a", "b"], [1, 0, 1])
    ['b', 'a', 'b']
    """
    if value is None or rows is None:
        return value
    return [value[row] for row in rows] if type(value) is list else value[list(rows)]


def repeated_rows(value: Any, times: int) -> Any:
    """Every row of a raw column ``times`` times in a row.

    >>> repeated_rows(["a", "b"], 2)
    ['a', 'a', 'b', 'b']
    """
    if type(value) is list:
        return [row for row in value for _ in range(times)]
    return value.repeat_interleave(times, dim=0)
