"""DAPO without its filter: a long-answer penalty, groups of 16, a loss that is a sum over tokens with its count."""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Metric, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import Advantages, B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores, prompts_of

GROUP = 16


class TokenLoss(hf.Batch):
    loss_sum: Metric[float, Literal["sum"]]
    tokens: Metric[int, Literal["sum"]]


class Actor(Policy):
    @register(Dispatch.THREE_D_PROTO)
    def update_tokens(self, rollout: Rollout, advantages: Advantages) -> TokenLoss:
        ratio = (self.chosen(rollout.ids.tensor) - rollout.log_probs.tensor).exp().clamp(0.8, 1.28)
        loss = -(ratio * advantages.advantages.tensor).sum()
        return TokenLoss(loss_sum=float(loss), tokens=int(rollout.response_mask.tensor.sum()))


@hf.function
def shaped(rollout: Rollout, scores: Scores, soft_limit: int = 3) -> Scores:
    overlong = (rollout.response_mask.tensor.sum(1) - soft_limit).clamp(min=0)
    return Scores(reward=scores.reward.tensor - 0.1 * overlong)


@hf.function(rows=hf.Grouped(GROUP))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages:
    rewards = scores.reward.tensor.view(-1, GROUP)
    centered = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    return Advantages(advantages=centered.flatten()[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> TokenLoss:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    scores = shaped(rollout, reward.score(rollout), soft_limit=2)
    return actor.update_tokens(rollout, group_advantages(scores, rollout))


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=4, tp=2)), reward=hf.place(Reward, pool=pool)
    ),
    dims={B: 2, P: 3, R: 4},
    batches=prompts_of(2),
)
