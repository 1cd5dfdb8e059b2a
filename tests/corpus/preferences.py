"""A role that learns from preference pairs, which the programs on the signs of its loss share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import hfdsl as hf
from hfdsl import f32, i64
from tests.corpus.learners import Descending
from tests.corpus.vocabulary import TOKENS, B, T

if TYPE_CHECKING:
    import torch


class Pairs(hf.Batch):
    """Two answers to each question, and what a reference thinks of them."""

    chosen_ids: i64[B, T]
    rejected_ids: i64[B, T]
    ref_chosen: f32[B]
    ref_rejected: f32[B]


class Preferring(Descending):
    """A policy that learns which of two answers is better; a subclass has the loss."""

    beta = 0.1

    def log_probs(self, ids: torch.Tensor) -> torch.Tensor:
        """The log-probability of each answer."""
        return self.chosen(ids).sum(-1)


def pairs_of(rows: int, length: int = 7) -> Callable[[], Iterator[Pairs]]:
    """A data set with one batch."""

    def batches() -> Iterator[Pairs]:
        import torch

        ids = torch.arange(rows * length).view(rows, length) % TOKENS
        scores = torch.zeros(rows)
        yield Pairs(chosen_ids=ids, rejected_ids=ids.flip(0), ref_chosen=scores, ref_rejected=scores)

    return batches
