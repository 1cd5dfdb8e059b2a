"""Scores are centered by the mean of their group and divided by its spread."""

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


@hf.function(rows=hf.GroupedBy("group"))
def centered(scores: Scores, rollout: Rollout, *, group: int) -> Advantages:
    groups = scores.reward.tensor.view(-1, group)
    gained = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
    return Advantages(advantages=gained.flatten()[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))
    return actor.update(rollout, centered(reward.score(rollout), rollout, group=4))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
