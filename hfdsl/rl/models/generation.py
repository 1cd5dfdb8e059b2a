"""Sampling responses token by token, with a key-value cache.

Dim letters: b rows of a micro-batch, P prompt tokens, R response tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from transformers.cache_utils import Cache

from hfdsl.rl.models.forward import Policy, positions
from hfdsl.rl.workers.config import GenerationConfig

COMPACTION_SHARE = 0.75
"""The share of active rows at which those that have ended leave a batch. Compacting copies the cache, so it should not
happen for every row."""


class TokenRecord:
    """The versions i64[b, R] and the log-probs of tokens, for a micro-batch that takes weights between tokens.

    Log-probs f32[b, R] are those under the weights that sampled each token, and 0 on padding. ``take`` loads the
    weights that have arrived before a token, and returns their version.
    """

    def __init__(self, rows: int, length: int, take: Callable[[int], int], device: torch.device) -> None:
        self.versions = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(rows, length, device=device)
        self._take, self._version = take, 0

    def replaced(self, r: int) -> bool:
        """Whether token ``r``, which is about to be sampled, has other weights than the token before it."""
        version = self._take(r)
        changed = not r or version != self._version
        self._version = version
        self.versions[:, r:] = version
        return changed

    def sampled(
        self, rows: torch.Tensor, r: int, logits: torch.Tensor, token: torch.Tensor, real: torch.Tensor
    ) -> None:
        """Record the tokens that rows i64[b] have sampled from logits f32[b, V]."""
        log_probs = logits.gather(-1, token[:, None]).squeeze(-1) - logits.logsumexp(-1)
        self.log_probs[rows, r] = log_probs * real


@torch.no_grad()  # not inference_mode: updates train on these tokens
def generate(
    policy: Policy,
    ids: torch.Tensor,
    mask: torch.Tensor,
    uniforms: torch.Tensor | None,
    config: GenerationConfig,
    end_tokens: Collection[int],
    pad_token: int,
    in_flight: TokenRecord | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Responses to a micro-batch of prompts i64[b, P], bool[b, P]: tokens i64[b, R] and their mask bool[b, R].

    Token r of a row is sampled with its ``uniforms`` f32[b, R]; without them the likeliest token is taken. Padding
    follows the end of a row. Rows that have ended leave the batch, many at a time, until none is active.

    Weights that arrive ``in_flight`` sample the next token, after the cache has been recomputed: so each token is the
    one that its weights alone would have sampled after the preceding tokens.
    """
    rows, length = len(ids), config.max_tokens
    tokens = torch.full((rows, length), pad_token, dtype=torch.int64, device=ids.device)
    response_mask = torch.zeros(rows, length, dtype=torch.bool, device=ids.device)
    ends = torch.tensor(sorted(end_tokens), dtype=torch.int64, device=ids.device)
    kept_rows = torch.arange(rows, device=ids.device)  # the rows that have not left
    active = torch.ones(rows, dtype=torch.bool, device=ids.device)
    cache, step_ids, step_positions = None, ids, positions(mask)
    attended = torch.cat([mask, response_mask], dim=1).long()
    for r in range(length):
        if in_flight is not None and in_flight.replaced(r):
            cache, step_positions = None, positions(attended[:, : ids.shape[1] + r])
            step_ids = torch.cat([ids, tokens[:, :r]], dim=1)[kept_rows]
        logits, cache = policy.next_logits(step_ids, attended[:, : ids.shape[1] + r], step_positions, cache)
        if uniforms is None:
            token = logits.argmax(-1)
        else:
            token = sample(logits, uniforms[kept_rows, r], config.top_p, config.top_k)
        token = torch.where(active, policy.broadcast_tokens(token), pad_token)
        tokens[kept_rows, r] = token
        if in_flight is not None:
            in_flight.sampled(kept_rows, r, logits, token, active)
        response_mask[kept_rows, r] = active
        attended[:, ids.shape[1] + r] = active
        active = active & ~torch.isin(token, ends)
        active_count = int(active.sum())
        if not active_count:
            break
        step_ids, step_positions = token[:, None], step_positions[:, -1:] + 1
        if active_count <= COMPACTION_SHARE * len(kept_rows) and isinstance(cache, Cache):
            selected: Any = active.nonzero().squeeze(1)
            # Some kinds of layers lack ``batch_select_indices``; reordering may also drop rows.
            cache.reorder_cache(selected)
            kept_rows, active, attended, step_ids, step_positions = (
                column[selected] for column in (kept_rows, active, attended, step_ids, step_positions)
            )
    return tokens, response_mask


def sample(logits: torch.Tensor, uniforms: torch.Tensor, top_p: float = 1.0, top_k: int = 0) -> torch.Tensor:
    """One token for each row, by inverting the cumulative distribution, f32[b, V], f32[b] -> i64[b].

    Candidates are the ``top_k`` likeliest tokens (0: all), and of those the fewest whose probabilities add up to
    ``top_p``.

    >>> sample(torch.tensor([[0.0, 0.0]]), torch.tensor([0.6])).tolist()
    [1]
    >>> sample(torch.tensor([[0.0, 1.0]]), torch.tensor([0.1]), top_k=1).tolist()
    [1]
    """
    probabilities = logits.double().softmax(-1)
    if top_k or top_p < 1.0:
        probabilities = _truncated(probabilities, top_p, top_k)
    cumulative = probabilities.cumsum(-1)
    target = uniforms.double()[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    # A uniform close to 1 can round up to the total and select a token of probability 0, or one past the end.
    last_possible = logits.shape[-1] - 1 - (probabilities > 0).flip(-1).long().argmax(-1)
    return torch.minimum(token, last_possible)


def _truncated(probabilities: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    ranked, order = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_k:
        ranked[:, top_k:] = 0.0
    probability_before = ranked.cumsum(-1) - ranked
    dropped = probability_before >= top_p * ranked.sum(-1, keepdim=True)
    dropped[:, 0] = False
    return torch.zeros_like(probabilities).scatter(-1, order, ranked.masked_fill(dropped, 0.0))
