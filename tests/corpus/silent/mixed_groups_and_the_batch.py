"""A function on groups subtracts the mean of all rows, not that of each group."""

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
    rewards = scores.reward.tensor
    gained = rewards - rewards.mean(dim=0)  # <- HF338
    return Advantages(advantages=gained[:, None] * rollout.response_mask.tensor)


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
