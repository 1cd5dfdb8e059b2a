"""Nothing is above the mean of a group of one: all advantages are 0, and nothing is learned."""

from typing import Annotated

import hfdsl as hf
from tests.corpus.advantages import centered
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    prompts_of,
)

Share = Annotated[float, hf.Within(at_least=0, at_most=1)]


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 1) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, group))
    return actor.update(rollout, centered(reward.score(rollout), rollout, group=group))  # <- HF314


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
