"""What frozen or momentarily unchanged models say of sequences, micro-batch by micro-batch."""

from __future__ import annotations

import torch

from hfdsl.rl.batches import Sequences
from hfdsl.rl.models.device import autocast, device
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.micro_batches import assembled, micro_batches
from hfdsl.rl.models.sharding import gathered_parameters
from hfdsl.rl.workers.config import BatchingConfig, FloatDType


def log_probs(policy: Policy, sequences: Sequences, batching: BatchingConfig, dtype: FloatDType | None) -> torch.Tensor:
    """The log-probs of responses, f32[B, R]; 0 on padding."""
    return response_log_probs(policy, *columns(sequences), batching, dtype)


def columns(sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, mask and response mask, where the model is."""
    here = device()
    return (
        sequences.ids.tensor.to(here),
        sequences.mask.tensor.to(here),
        sequences.response_mask.tensor.to(here),
    )


@torch.no_grad()
def response_log_probs(
    policy: Policy,
    ids: torch.Tensor,
    mask: torch.Tensor,
    response_mask: torch.Tensor,
    batching: BatchingConfig,
    dtype: FloatDType | None,
) -> torch.Tensor:
    """The log-probs of responses, f32[B, R]; 0 on padding."""
    rows, width = response_mask.shape
    with gathered_parameters(policy), autocast(dtype, ids.device):
        parts = [
            (part, policy(part.sequences(ids, width), part.sequences(mask, width), part.length)[0])
            for part in micro_batches(mask, width, batching)
        ]
    return assembled(parts, rows, width) * response_mask


@torch.no_grad()
def values(scorer: Scorer, sequences: Sequences, batching: BatchingConfig, dtype: FloatDType | None) -> torch.Tensor:
    """The value of the state before each token of a response, f32[B, R]; 0 on padding."""
    ids, mask, response_mask = columns(sequences)
    rows, width = response_mask.shape
    with gathered_parameters(scorer), autocast(dtype, ids.device):
        parts = [
            (part, scorer(part.sequences(ids, width), part.sequences(mask, width))[:, -part.length - 1 : -1])
            for part in micro_batches(mask, width, batching)
        ]
    return assembled(parts, rows, width) * response_mask


@torch.no_grad()
def scores(scorer: Scorer, sequences: Sequences, batching: BatchingConfig, dtype: FloatDType | None) -> torch.Tensor:
    """The number at the last token of every sequence, f32[B]."""
    ids, mask, response_mask = columns(sequences)
    rows, width = response_mask.shape
    found = torch.zeros(rows, device=ids.device)
    with gathered_parameters(scorer), autocast(dtype, ids.device):
        for part in micro_batches(mask, width, batching):
            there = part.sequences(mask, width)
            last = there.shape[1] - 1 - there.flip(1).long().argmax(1)
            numbers = scorer(part.sequences(ids, width), there).gather(1, last[:, None]).squeeze(1)
            found[part.rows[: part.real_rows]] = numbers[: part.real_rows]
    return found
