"""A discount with the wrong sign: rewards of later tokens change theirs with every step."""

from typing import Annotated

import hfdsl as hf
from hfdsl.rl.advantages import discounted_returns
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


@hf.function
def discounted(rollout: Rollout, scores: Scores, *, gamma: Share = 1.0) -> Advantages:
    mask = rollout.response_mask.tensor
    return Advantages(advantages=discounted_returns(scores.reward.tensor[:, None] * mask, mask, gamma))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, discounted(rollout, reward.score(rollout), gamma=-0.99))  # <- HF940


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
