"""Rows that a model would compute wrong numbers of, and errors that name a row of the batch.

A worked example, with P = 3 and R = 2. A model predicts a token from the state of the column before it::

             prompt    response
    row 0    . a b  |  c .        c from b
    row 1    a b .  |  c .        c from padding: tokenizers pad on the right by default
    row 2    . a b  |  . c        c from padding
    row 3    a . b  |  c .        c from b, which attends to a: earlier turns may leave padding between tokens
    row 4    . a b  |  c d        with d in response_mask, and not in mask: d would be learned without being read
"""

from __future__ import annotations

from typing import Any, Final

import torch

from hfdsl.errors import HfError
from hfdsl.protocols.call import running_call

PADDING: Final = (
    'pad prompts on the left, with padding_side="left" of a tokenizer of transformers, and responses on the right'
)
"""Advice on padding."""


def bad_row(row: int, problem: str, code: str = "HF811") -> HfError:
    """The error for row ``row`` of this rank, with its number in the whole batch."""
    call = running_call()
    batch_row = call.rows[row] if call is not None and call.row_count is not None else row
    return HfError(code, f"row {batch_row}: {problem}")


def check_prompts(ids: torch.Tensor, mask: torch.Tensor, model: Any) -> None:
    """Refuse prompts i64[B, P] with mask bool[B, P] that a model cannot continue.

    Raises:
        HfError: HF811 for a prompt without a token, with padding at its end, or with a token that the model has not.
    """
    check_tokens(ids, model)
    check_ends(mask)
    empty = ~mask.any(1)
    if bool(empty.any()):
        raise bad_row(_first(empty)[0], "its prompt has no token, so that nothing comes before a response")


def check_ends(mask: torch.Tensor) -> None:
    """Refuse prompts, by their masks bool[B, P], that end with padding.

    Raises:
        HfError: HF811.
    """
    padded = mask.any(1) & ~mask[:, -1:].any(1)
    if bool(padded.any()):
        raise bad_row(_first(padded)[0], f"its prompt ends with padding, from which a response would begin; {PADDING}")


def check_sequences(ids: torch.Tensor, mask: torch.Tensor, response_mask: torch.Tensor, model: Any) -> None:
    """Refuse sequences i64[B, T] with masks bool[B, T] and bool[B, R] of which a model would compute other numbers.

    Raises:
        HfError: HF811 for tokens of a response after padding, for those that the mask calls padding, and for tokens
            that the model has not.
    """
    check_tokens(ids, model)
    border = mask.shape[1] - response_mask.shape[1]
    unread = response_mask & ~mask[:, border:]
    if bool(unread.any()):
        row, token = _first(unread)
        raise bad_row(row, f"token {token} of its response counts in response_mask, but is padding in mask")
    before = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], 1)
    late = response_mask & (~before & (before.cumsum(1) > 0))[:, border:]
    if bool(late.any()):
        row, token = _first(late)
        raise bad_row(row, f"token {token} of its response comes after padding, which would predict it; {PADDING}")


def check_tokens(ids: torch.Tensor, model: Any) -> None:
    """Refuse token IDs that a model of transformers has no embedding for, on padding, too.

    Raises:
        HfError: HF811.
    """
    count = model.config.get_text_config().vocab_size
    unknown = (ids < 0) | (ids >= count)
    if bool(unknown.any()):
        row, column = _first(unknown)
        raise bad_row(
            row,
            f"its token in column {column} is {int(ids[row, column])}, and the model has 0 to {count - 1}: is the "
            "tokenizer that of the model?",
        )


def check_preferences(preference: torch.Tensor) -> torch.Tensor:
    """The preferences f32[B], which are numbers: which response is better is unknown where a score is NaN.

    Raises:
        HfError: HF811.
    """
    unknown = preference.isnan()
    if bool(unknown.any()):
        raise bad_row(_first(unknown)[0], "its preference is nan, as where the score of a response is")
    return preference


def _first(flags: torch.Tensor) -> list[int]:
    """The indices of the first true element."""
    indices: list[int] = flags.nonzero()[0].tolist()
    return indices
