"""Rows that a model would compute wrong numbers of, and errors that name a row of the batch.

A worked example, with P = 3 and R = 2. A model continues what is in the column before the border::

             prompt    response
    row 0    . a b  |  c .        c follows b
    row 1    a b .  |  c .        c would follow padding: tokenizers pad on the right by default
    row 2    . a b  |  c d        with d in response_mask, and not in mask: d would be learned without being read
"""

from __future__ import annotations

from typing import Any

import torch

from hfdsl.errors import HfError
from hfdsl.protocols.call import running_call


def bad_row(row: int, problem: str, code: str = "HF811") -> HfError:
    """The error for row ``row`` of this rank, with its number in the whole batch."""
    call = running_call()
    batch_row = call.rows[row] if call is not None and call.row_count is not None else row
    return HfError(code, f"row {batch_row}: {problem}")


def check_prompts(ids: torch.Tensor, mask: torch.Tensor, model: Any) -> None:
    """Refuse prompts i64[B, P] with mask bool[B, P] that a model cannot continue.

    Raises:
        HfError: HF811 for a prompt without a token, with padding after a token, or with a token that the model has not.
    """
    check_tokens(ids, model)
    check_padding(mask, mask.shape[1])
    empty = ~mask.any(1)
    if bool(empty.any()):
        raise bad_row(_first(empty)[0], "its prompt has no token, so that nothing comes before a response")


def check_sequences(ids: torch.Tensor, mask: torch.Tensor, response_mask: torch.Tensor, model: Any) -> None:
    """Refuse sequences i64[B, T] with masks bool[B, T] and bool[B, R] of which a model would compute other numbers.

    Raises:
        HfError: HF811 for a prompt with padding after a token, tokens of a response that the mask calls padding, and
            tokens that the model has not.
    """
    check_tokens(ids, model)
    border = mask.shape[1] - response_mask.shape[1]
    check_padding(mask, border)
    unread = response_mask & ~mask[:, border:]
    if bool(unread.any()):
        row, token = _first(unread)
        raise bad_row(row, f"token {token} of its response counts in response_mask, but is padding in mask")


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
    """The preferences f32[B], which are numbers: nobody knows which response is better where a score is NaN.

    Raises:
        HfError: HF811.
    """
    unknown = preference.isnan()
    if bool(unknown.any()):
        raise bad_row(_first(unknown)[0], "its preference is nan, as where the score of a response is")
    return preference


def check_padding(mask: torch.Tensor, border: int) -> None:
    """Refuse prompts with padding after a token, in the columns of bool[B, T] before ``border``.

    Raises:
        HfError: HF811.
    """
    late = mask[:, : border - 1] & ~mask[:, 1:border]
    if bool(late.any()):
        row, column = _first(late)
        raise bad_row(
            row,
            f"its prompt has padding in column {column + 1}, after a token; prompts are padded on the left: with a "
            'tokenizer of transformers, set padding_side="left"',
        )


def _first(flags: torch.Tensor) -> list[int]:
    """The indices of the first true element."""
    indices: list[int] = flags.nonzero()[0].tolist()
    return indices
