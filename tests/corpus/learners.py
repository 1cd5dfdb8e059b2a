"""A role that learns with an optimizer of torch: the programs on replicas and on states share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import hfdsl as hf
from tests.corpus.vocabulary import TOKENS

if TYPE_CHECKING:
    import torch


class LearnerMetrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Bigrams(hf.Worker):
    """A model of which token follows which; a subclass learns."""

    def __init__(self, rate: float = 0.1) -> None:
        import torch

        self.table = torch.nn.Embedding(TOKENS, TOKENS)
        self.optimizer = torch.optim.SGD(self.table.parameters(), lr=rate)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """The negative log-probability of each token after the first, on average."""
        import torch

        return torch.nn.functional.cross_entropy(self.table(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
