"""Advantages are whitened in a function that says nothing about its rows: every GPU whitens its own."""

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


@hf.function
def whitened(advantages: Advantages) -> Advantages:
    values = advantages.advantages.tensor
    spread = values.std() + 1e-6
    return Advantages(advantages=(values - values.mean()) / spread)  # <- HF338


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
