"""A function that compares only where there is something to compare with."""

from typing import Annotated

import hfdsl as hf
from hfdsl.rl.advantages import group_normalized
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

Share = Annotated[float, hf.Within(at_least=0, at_most=1)]


@hf.function(rows=hf.GroupedBy("group"))
def compared(scores: Scores, rollout: Rollout, *, group: int) -> Advantages:
    rewards = scores.reward.tensor
    if group > 1:
        rewards = group_normalized(rewards, group)
    return Advantages(advantages=rewards[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 1) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, group))
    return actor.update(rollout, compared(reward.score(rollout), rollout, group=group))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
