"""Attention of one new token to a cache, without repeating the cache's heads.

With grouped queries, several query heads share a head of keys and values. A pass that repeats keys and values for each
query head writes and reads them that many times, and a step of generation does little else than read the cache. But the
heads of a group can take the place of the tokens of a sequence: one token with 4 heads in 2 groups attends like 2
tokens with 2 heads, as long as all of them see the same slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hfdsl.rl.models.packing import ATTENTION

GROUPED: Final = "hfdsl_grouped"
"""The name of the attention below in transformers."""


@contextmanager
def grouped_attention(config: Any) -> Iterator[None]:
    """Let a model with SDPA attend by groups within this context; other kinds of attention do not change."""
    usual = config._attn_implementation
    if usual not in ("sdpa", ATTENTION):
        yield
        return
    config._attn_implementation = GROUPED
    try:
        yield
    finally:
        config._attn_implementation = usual


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    rows, heads, tokens, _ = query.shape
    if tokens > 1 or heads == key.shape[1] or attention_mask is None:
        usual: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return usual
    groups = query.reshape(rows, key.shape[1], heads // key.shape[1], -1)
    attended = scaled_dot_product_attention(groups, key, value, attention_mask, dropout, scale=scaling)
    return attended.reshape(rows, 1, heads, -1), None


AttentionInterface.register(GROUPED, _attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
