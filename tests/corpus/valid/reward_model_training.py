"""A reward model is trained on pairs: no generation, another record, a metric that is reduced over the ranks."""

from collections.abc import Iterator
from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Metric, i64, register
from tests.corpus.vocabulary import B


class L(hf.Dim):
    """Tokens of a prompt with its response."""


class Comparisons(hf.Batch):
    chosen: i64[B, L]
    rejected: i64[B, L]


class Accuracy(hf.Batch):
    right: Metric[int, Literal["sum"]]
    loss: Metric[float, Literal["mean"]]
    largest: Metric[float, Literal["max"]]


class RewardModel(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % 4 == 0", "L <= 4096")
    def train(self, comparisons: Comparisons) -> Accuracy:
        margin = (comparisons.chosen.tensor - comparisons.rejected.tensor).float().mean(1)
        return Accuracy(right=int((margin > 0).sum()), loss=float(-margin.mean()), largest=float(margin.max()))


@hf.dataflow
def program(comparisons: Comparisons, model: RewardModel) -> list[Accuracy]:
    return [model.train(part) for _ in range(2) for part in hf.minibatches(comparisons, 3)]


def batches() -> Iterator[Comparisons]:
    import torch

    yield Comparisons(chosen=torch.arange(48).view(12, 4), rejected=torch.arange(48).view(12, 4).flip(0))


mesh = hf.Mesh(pp=2, dp=2, tp=1)
experiment = hf.Experiment(
    program,
    hf.Deployment(model=hf.place(RewardModel, pool=hf.ResourcePool([4]), mesh=mesh)),
    dims={B: 12, L: 4},
    batches=batches,
)
