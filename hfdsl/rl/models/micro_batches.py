"""Rows cut into micro-batches, and back.

Dim letters: B rows of a rank, b rows of a micro-batch, P prompt tokens, R response tokens, T = P + R.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hfdsl.rl.workers.config import BatchingConfig


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows, and the columns in which any of them has a token.

    Rows after the first ``real`` are there to fill it up; nothing of theirs counts.
    """

    rows: torch.Tensor
    real_rows: int
    first: int
    length: int

    def sequences(self, column: torch.Tensor, width: int) -> torch.Tensor:
        """The part of a column [B, T] where responses have ``width`` columns: [b, t]."""
        return column[self.rows, self.first : column.shape[1] - width + self.length]

    def response(self, column: torch.Tensor) -> torch.Tensor:
        """The part of a column [B, R]: [b, r]."""
        return column[self.rows, : self.length]

    def token_mask(self, response_mask: torch.Tensor) -> torch.Tensor:
        """The tokens that count, bool[b, r]."""
        mask = self.response(response_mask)
        if self.real_rows < len(self.rows):
            mask = mask & (torch.arange(len(mask), device=mask.device) < self.real_rows)[:, None]
        return mask


def micro_batches(mask: torch.Tensor, width: int, config: BatchingConfig, longer: int = 0) -> list[MicroBatch]:
    """The micro-batches of sequences with mask bool[B, T], of which the last ``width`` columns are responses.

    ``longer`` tokens are going to be added to every row.

    >>> mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 0]]).bool()
    >>> [part.rows.tolist() for part in micro_batches(mask, 2, BatchingConfig(tokens=8))]
    [[0, 2], [1, 3]]
    """
    if config.rows is not None:
        return list(_fixed(len(mask), config.rows, mask.device, width))
    lengths, border = _lengths(mask, width), mask.shape[1] - width
    return [
        MicroBatch(torch.tensor(rows, device=mask.device), len(rows), border - before, after)
        for rows in _by_length(lengths, config.tokens, longer)
        for before, after in [map(max, zip(*(lengths[row] for row in rows), strict=True))]
    ]


def _fixed(count: int, height: int, device: torch.device, width: int) -> Iterator[MicroBatch]:
    for start in range(0, count, height):
        rows = torch.arange(start, start + height, device=device).clamp(max=count - 1)
        yield MicroBatch(rows, min(height, count - start), 0, width)


def _lengths(mask: torch.Tensor, width: int) -> list[tuple[int, int]]:
    """How many columns a row needs before and after the start of its response, at least one where there is one."""
    columns = torch.arange(mask.shape[1], device=mask.device)
    border = mask.shape[1] - width
    sides = [
        torch.where(part, needed, 1).amax(1) if part.shape[1] else part.sum(1)
        for part, needed in (
            (mask[:, :border], border - columns[:border]),
            (mask[:, border:], columns[border:] - border + 1),
        )
    ]
    return list(zip(*(side.tolist() for side in sides), strict=True))


def _by_length(lengths: Sequence[tuple[int, int]], tokens: int, longer: int) -> Iterator[list[int]]:
    """Rows of like lengths together, the longest first; a row alone may be longer than ``tokens``."""
    part, before, after = list[int](), 0, 0
    for row in sorted(range(len(lengths)), key=lambda row: (-sum(lengths[row]), row)):
        wide = max(before, lengths[row][0]) + max(after, lengths[row][1])
        if part and (wide + longer) * (len(part) + 1) > tokens:
            yield part
            part, before, after = [], 0, 0
        part.append(row)
        before, after = max(before, lengths[row][0]), max(after, lengths[row][1])
    if part:
        yield part


def assembled(parts: Sequence[tuple[MicroBatch, torch.Tensor]], rows: int, width: int) -> torch.Tensor:
    """The column [B, width] of parts [b, r]; 0 where no part has a token."""
    like = parts[0][1]
    column = torch.zeros(rows, width, dtype=like.dtype, device=like.device)
    for part, values in parts:
        column[part.rows[: part.real_rows], : values.shape[1]] = values[: part.real_rows]
    return column
