"""The split of rows into micro-batches, and the assembly of their results into columns.

Dim letters: B rows of a rank, b rows of a micro-batch, P prompt tokens, R response tokens, T = P + R.

Prompts are padded on the left and responses on the right, so a micro-batch needs only the columns around the border in
which one of its rows has a token. With P = 4, R = 3 and at most 8 tokens in a micro-batch::

             prompt     response
    row 0    . . a b  | c . .      2 before, 1 after     rows 0 and 1 together: 2 + 2 columns of 2 rows, 8 tokens
    row 1    . . d e  | f g .      2 before, 2 after
    row 2    h i j k  | l m n      4 before, 3 after     row 2 by itself: 7 tokens

The first is ``MicroBatch(rows=[1, 0], real_rows=2, start=2, length=2)``: from column 2 on, with 2 columns of responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hfdsl.rl.workers.config import BatchingConfig


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some rows, and the columns in which one of them has a token."""

    rows: torch.Tensor
    """The indices of the rows among the rank's, i64[b]."""

    real_rows: int
    """The number of rows that count; those after them only fill up the micro-batch."""

    start: int
    """The first column of the sequences that the micro-batch needs."""

    length: int
    """The number of columns of responses that the micro-batch needs."""

    def sequences(self, column: torch.Tensor, width: int) -> torch.Tensor:
        """The part of a column [B, T] whose last ``width`` columns are responses: [b, t]."""
        return column[self.rows, self.start : column.shape[1] - width + self.length]

    def response(self, column: torch.Tensor) -> torch.Tensor:
        """The part of a column [B, R]: [b, r]."""
        return column[self.rows, : self.length]

    def token_mask(self, response_mask: torch.Tensor) -> torch.Tensor:
        """The tokens that count, bool[b, r]."""
        mask = self.response(response_mask)
        if self.real_rows < len(self.rows):
            mask = mask & (torch.arange(len(mask), device=mask.device) < self.real_rows)[:, None]
        return mask


def micro_batches(mask: torch.Tensor, width: int, config: BatchingConfig, extra_tokens: int = 0) -> list[MicroBatch]:
    """The micro-batches of sequences with mask bool[B, T]; the last ``width`` columns are responses.

    ``extra_tokens`` is the number of tokens by which generation extends every row.

    >>> mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 0]]).bool()
    >>> [part.rows.tolist() for part in micro_batches(mask, 2, BatchingConfig(tokens=8))]
    [[0, 2], [1, 3]]
    """
    if config.rows is not None:
        return list(_fixed(len(mask), config.rows, mask.device, width))
    lengths, border = _lengths(mask, width), mask.shape[1] - width
    return [
        MicroBatch(torch.tensor(rows, device=mask.device), len(rows), border - before, after)
        for rows in (_packed if config.packing else _by_length)(lengths, config.tokens, extra_tokens)
        for before, after in [map(max, zip(*(lengths[row] for row in rows), strict=True))]
    ]


def _fixed(count: int, height: int, device: torch.device, width: int) -> Iterator[MicroBatch]:
    for start in range(0, count, height):
        rows = torch.arange(start, start + height, device=device).clamp(max=count - 1)
        yield MicroBatch(rows, min(height, count - start), 0, width)


def _lengths(mask: torch.Tensor, width: int) -> list[tuple[int, int]]:
    """The number of columns that each row needs before and after the border, at least one if there is any."""
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


def _by_length(lengths: Sequence[tuple[int, int]], tokens: int, extra_tokens: int) -> Iterator[list[int]]:
    """Groups of rows of similar lengths, the longest first; a single row may be longer than ``tokens``."""
    rows, before, after = list[int](), 0, 0
    for row in sorted(range(len(lengths)), key=lambda row: (-sum(lengths[row]), row)):
        columns = max(before, lengths[row][0]) + max(after, lengths[row][1])
        if rows and (columns + extra_tokens) * (len(rows) + 1) > tokens:
            yield rows
            rows, before, after = [], 0, 0
        rows.append(row)
        before, after = max(before, lengths[row][0]), max(after, lengths[row][1])
    if rows:
        yield rows


def _packed(lengths: Sequence[tuple[int, int]], tokens: int, extra_tokens: int) -> Iterator[list[int]]:
    """Groups of rows with at most ``tokens`` together, the longest first; a single row may have more."""
    rows, used = list[int](), 0
    for row in sorted(range(len(lengths)), key=lambda row: (-sum(lengths[row]), row)):
        needed = sum(lengths[row]) + extra_tokens
        if rows and used + needed > tokens:
            yield rows
            rows, used = [], 0
        rows.append(row)
        used += needed
    if rows:
        yield rows


def assembled(parts: Sequence[tuple[MicroBatch, torch.Tensor]], rows: int, width: int) -> torch.Tensor:
    """The column [B, width] of the results [b, r] of all micro-batches; 0 outside of them."""
    if not parts:
        return torch.zeros(rows, width)
    like = parts[0][1]
    column = torch.zeros(rows, width, dtype=like.dtype, device=like.device)
    for part, values in parts:
        column[part.rows[: part.real_rows], : values.shape[1]] = values[: part.real_rows]
    return column
