# mypy: disable-error-code="valid-type, arg-type"
"""Rejection sampling fine-tuning: the best of 8 samples of a prompt is learned by imitation."""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Div, bool_, i64, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Sequences,
    T,
    Table,
    prompts_of,
)

N = 8
Kept = Div[B, Literal[8]]


class Best(hf.Batch):
    ids: i64[Kept, T]
    response_mask: bool_[Kept, R]


class Imitator(Table):
    @register(Dispatch.THREE_D_PROTO, pad="repeat_last")
    def fine_tune(self, sequences: Sequences) -> ActorMetrics:
        return ActorMetrics(loss=float(-self.chosen(sequences.ids.tensor).mean()))


@hf.function(rows=hf.Grouped(N))
def best_of_each(rollout: Rollout, scores: Scores) -> Best:
    import torch

    best = scores.reward.tensor.view(-1, N).argmax(1) + N * torch.arange(len(rollout) // N)
    return Best(ids=rollout.ids.tensor[best], response_mask=rollout.response_mask.tensor[best])


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, imitator: Imitator) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, N))
    best = best_of_each(rollout, reward.score(rollout))
    return imitator.fine_tune(Sequences(ids=best.ids, response_mask=best.response_mask))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
        imitator=hf.place(Imitator, PolicyConfig(), pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
