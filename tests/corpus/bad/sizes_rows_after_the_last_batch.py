# mypy: disable-error-code="empty-body"
"""10,000 rows make 78 batches of 128, and 16 rows are left over.

Seen: https://github.com/thinking-machines-lab/tinker-cookbook/pull/381
Elsewhere: silent: the number of batches is rounded down, and no update uses the remaining rows.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Div, i64
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, R, Sequences, Table


class Batches(hf.Batch):
    ids: i64[Div[B, Literal[128]], Literal[128]]


class Trainer(Table):
    @hf.register(hf.Dispatch.DP_PROTO)
    def learn(self, batches: Batches) -> ActorMetrics: ...


@hf.function(rows=hf.Whole)
def batched(conversations: Sequences) -> Batches: ...


@hf.dataflow
def supervised(conversations: Sequences, trainer: Trainer) -> ActorMetrics:
    return trainer.learn(batched(conversations))  # <- HF303


experiment = hf.Experiment(
    supervised,
    hf.Deployment(trainer=hf.place(Trainer, PolicyConfig(), pool=hf.ResourcePool([1]))),
    dims={B: 10_000, P: 512, R: 512},
)
