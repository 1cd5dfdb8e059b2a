"""A discount of 0 and a whole number are within the bounds."""

from typing import Annotated

import hfdsl as hf
from hfdsl.rl.advantages import gae
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Critic,
    Estimates,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Values,
    prompts_of,
)

Share = Annotated[float, hf.Within(at_least=0, at_most=1)]


@hf.function
def estimated(rollout: Rollout, values: Values, scores: Scores, *, gamma: float = 1.0, lam: float = 0.95) -> Estimates:
    mask = rollout.response_mask.tensor
    rewards = scores.reward.tensor[:, None] * mask
    advantages, returns = gae(rewards, values.values.tensor, mask, gamma, lam)
    return Estimates(advantages=advantages, returns=returns)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    estimates = estimated(rollout, critic.values(rollout), scores, gamma=0)
    return actor.update(rollout, estimates)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        critic=hf.place(Critic, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
