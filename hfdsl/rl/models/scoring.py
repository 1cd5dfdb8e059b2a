"""Log-probs, values and scores of given sequences, micro-batch by micro-batch and without gradients.

Dim letters: B rows of a rank, b rows of a micro-batch, P prompt tokens, R response tokens, T = P + R; t and r are the
columns of a micro-batch that hold a token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hfdsl.rl.batches import Sequences
from hfdsl.rl.models.device import autocast, device
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.micro_batches import MicroBatch, assembled, micro_batches
from hfdsl.rl.models.row_errors import check_sequences, check_tokens
from hfdsl.rl.models.sharding import gathered_parameters
from hfdsl.rl.workers.config import BatchingConfig
from hfdsl.rl.workers.model_config import FloatDType


def columns(sequences: Sequences, module: Policy | Scorer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and response mask, on the device of the model.

    Raises:
        HfError: HF811 for a row that the model would compute wrong numbers of.
    """
    masks = sequences.mask.tensor, sequences.response_mask.tensor
    check_sequences(sequences.ids.tensor, *masks, module.model if isinstance(module, Policy) else module.base_model)
    return _on_device(sequences)


def scored_columns(sequences: Sequences, scorer: Scorer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and response mask for a score of the last token, which padding anywhere before it does not change.

    Raises:
        HfError: HF811 for a token that the model does not have.
    """
    check_tokens(sequences.ids.tensor, scorer.base_model)
    return _on_device(sequences)


def _on_device(sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    columns = (sequences.ids.tensor, sequences.mask.tensor, sequences.response_mask.tensor)
    ids, mask, response_mask = (column.to(device()) for column in columns)
    return ids, mask, response_mask


def log_probs(policy: Policy, sequences: Sequences, batching: BatchingConfig, dtype: FloatDType | None) -> torch.Tensor:
    """The log-probs of responses, f32[B, R]; 0 on padding."""
    return response_log_probs(policy, *columns(sequences, policy), batching, dtype)


def response_log_probs(
    policy: Policy,
    ids: torch.Tensor,
    mask: torch.Tensor,
    response_mask: torch.Tensor,
    batching: BatchingConfig,
    dtype: FloatDType | None,
) -> torch.Tensor:
    """The log-probs of responses, f32[B, R]; 0 on padding."""

    def forward(part: MicroBatch, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        log_probs, _ = policy(ids, mask, part.length)
        return log_probs  # type: ignore[no-any-return]  # of torch

    passes = _passes(policy, forward, ids, mask, response_mask.shape[1], batching, dtype)
    return assembled(passes, *response_mask.shape) * response_mask


def values(scorer: Scorer, sequences: Sequences, batching: BatchingConfig, dtype: FloatDType | None) -> torch.Tensor:
    """The value of the state before each token of a response, f32[B, R]; 0 on padding."""
    ids, mask, response_mask = columns(sequences, scorer)

    def forward(part: MicroBatch, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        # The value of a state is at its last token, the one before the token that it leads to.
        return scorer(ids, mask)[:, -part.length - 1 : -1]  # type: ignore[no-any-return]  # of torch

    passes = _passes(scorer, forward, ids, mask, response_mask.shape[1], batching, dtype)
    return assembled(passes, *response_mask.shape) * response_mask


def scores(scorer: Scorer, sequences: Sequences, batching: BatchingConfig, dtype: FloatDType | None) -> torch.Tensor:
    """The head's number at the last token of every sequence, f32[B]."""
    ids, mask, response_mask = scored_columns(sequences, scorer)

    def forward(part: MicroBatch, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        last = mask.shape[1] - 1 - mask.flip(1).long().argmax(1)  # argmax returns the first of several maxima
        return scorer(ids, mask).gather(1, last[:, None]).squeeze(1)  # type: ignore[no-any-return]  # of torch

    last_scores = torch.zeros(len(ids), device=ids.device)
    for part, part_scores in _passes(scorer, forward, ids, mask, response_mask.shape[1], batching, dtype):
        last_scores[part.rows[: part.real_rows]] = part_scores[: part.real_rows]
    return last_scores


@torch.no_grad()
def _passes(
    module: Policy | Scorer,
    forward: Callable[[MicroBatch, torch.Tensor, torch.Tensor], torch.Tensor],
    ids: torch.Tensor,
    mask: torch.Tensor,
    width: int,
    batching: BatchingConfig,
    dtype: FloatDType | None,
) -> list[tuple[MicroBatch, torch.Tensor]]:
    """The results of ``forward`` on the ids and the mask of each micro-batch, i64[b, t] and bool[b, t]."""
    with gathered_parameters(module), autocast(dtype, ids.device):
        return [
            (part, forward(part, part.sequences(ids, width), part.sequences(mask, width)))
            for part in micro_batches(mask, width, batching)
        ]
