"""Row weights: how much each row of a raw column counts when chunks are balanced."""

from __future__ import annotations

from typing import Any

from hfdsl.types.ragged import Jagged


def row_weights(column: Any) -> Any:
    """A whole number per row: the sum over its other dims, or the length of a ragged row; None for an absent column.

    >>> import torch
    >>> row_weights(torch.tensor([[True, False], [True, True]])), row_weights(torch.tensor([7, 8], dtype=torch.int32))
    (tensor([1, 2]), tensor([7, 8]))
    """
    if column is None:
        return None
    if isinstance(column, Jagged):
        return column.offsets.diff()
    return column.unsqueeze(-1).flatten(1).sum(1)
