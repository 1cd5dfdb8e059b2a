# mypy: disable-error-code="valid-type, arg-type"
"""Online DPO: two samples of a prompt become one pair; rows are halved in a record, exactly."""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Div, f32, i64, register
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
    T,
    prompts_of,
)

Pair = Div[B, Literal[2]]


class Pairs(hf.Batch):
    chosen: i64[Pair, T]
    rejected: i64[Pair, T]
    margin: f32[Pair]


class Preferences(hf.Batch):
    chosen: i64[B, T]
    rejected: i64[B, T]


class Learner(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def dpo(self, pairs: Preferences) -> ActorMetrics:
        return ActorMetrics(loss=float((pairs.chosen.tensor != pairs.rejected.tensor).float().mean()))


@hf.function(rows=hf.Grouped(2))
def paired(rollout: Rollout, scores: Scores) -> Pairs:
    import torch

    ids, rewards = rollout.ids.tensor, scores.reward.tensor.view(-1, 2)
    first = rewards[:, 0] >= rewards[:, 1]
    even, odd = ids[::2], ids[1::2]
    return Pairs(
        chosen=torch.where(first[:, None], even, odd),
        rejected=torch.where(first[:, None], odd, even),
        margin=(rewards[:, 0] - rewards[:, 1]).abs(),
    )


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, learner: Learner) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 2))
    pairs = paired(rollout, reward.score(rollout))
    return learner.dpo(Preferences(chosen=pairs.chosen, rejected=pairs.rejected))


left, right = hf.ResourcePool([4]).split([2, 2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=left),
        reward=hf.place(Reward, pool=left),
        learner=hf.place(Learner, pool=right),
    ),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
