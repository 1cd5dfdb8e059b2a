"""Advantages are whitened in a function of the whole batch."""

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
    gains,
    prompts_of,
)


@hf.function(rows=hf.Whole)
def whitened(advantages: Advantages) -> Advantages:
    values = advantages.advantages.tensor
    return Advantages(advantages=(values - values.mean()) / (values.std() + 1e-6))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, whitened(gains(reward.score(rollout), rollout)))


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
