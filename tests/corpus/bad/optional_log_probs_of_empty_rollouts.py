# mypy: disable-error-code="empty-body, arg-type"
"""Truncated importance sampling is on, but the batch may lack the log-probabilities that it divides by.

Seen: https://github.com/google/tunix/pull/2339
Elsewhere: one trajectory without tokens drops the field for the whole batch; a ValueError during training.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, Prompts, R, Sequences


class TrainBatch(Sequences):
    rollout_per_token_logps: f32[B, R] | None = None


class RolloutEngine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def rollout(self, prompts: Prompts) -> TrainBatch: ...


class Learner(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def update(self, batch: Sequences, sampled: f32[B, R], advantages: Advantages) -> ActorMetrics: ...


@hf.function
def advantages_of(batch: Sequences) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, engine: RolloutEngine, learner: Learner) -> ActorMetrics:
    batch = engine.rollout(hf.repeat(prompts, 8))
    return learner.update(batch, batch.rollout_per_token_logps, advantages_of(batch))  # <- HF231


experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        engine=hf.place(RolloutEngine, pool=hf.ResourcePool([4])),
        learner=hf.place(Learner, pool=hf.ResourcePool([4])),
    ),
    dims={B: 32, P: 512, R: 1024},
)
