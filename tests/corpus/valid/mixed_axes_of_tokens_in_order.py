"""Rewards of tokens are viewed in groups of consecutive rows."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)

GROUP = 4


@hf.function
def spread(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.function(rows=hf.Grouped(GROUP))
def compared(rewards: Advantages) -> Advantages:
    reward = rewards.advantages.tensor
    groups = reward.view(-1, GROUP, reward.shape[1])
    return Advantages(advantages=(groups - groups.mean(1, keepdim=True)).view_as(reward))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    return actor.update(rollout, compared(spread(reward.score(rollout), rollout)))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
