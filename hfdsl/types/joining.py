"""Joining: one column out of parts, each of them from another maker."""

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
    if not there("a column", parts, [f"part {number}" for number in range(len(parts))]):
        return None
    return rows_after_rows(parts)


def rows_after_rows(parts: Sequence[Any]) -> Any:
    """The rows of all parts, each a tensor, a ragged column or a list; a single part is given back itself.

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


def there(what: str, parts: Sequence[Any], makers: Sequence[str]) -> bool:
    """Whether a column is there, of which these are parts.

    >>> there("column 'x'", [[1], [2]], ["rank 0", "rank 1"])
    True

    Raises:
        WiringError: HF810 where some have it and others do not.
    """
    giving = [maker for maker, part in zip(makers, parts, strict=True) if part is not None]
    lacking = [maker for maker, part in zip(makers, parts, strict=True) if part is None]
    if giving and lacking:
        raise WiringError(
            "HF810",
            f"{what} is there on {', '.join(giving)} and absent on {', '.join(lacking)}; "
            "an optional column is there for all rows or for none",
        )
    return not lacking
