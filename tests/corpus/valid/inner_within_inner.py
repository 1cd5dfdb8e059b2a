"""An update within an epoch within a step, each a dataflow."""

import hfdsl as hf
from tests.corpus.advantages import gained
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
    prompts_of,
)


@hf.dataflow
def updated(rollout: Rollout, advantages: Advantages, actor: Actor) -> ActorMetrics:
    return actor.update(rollout, advantages)


@hf.dataflow
def epoch(rollout: Rollout, advantages: Advantages, actor: Actor, parts: int | None = None) -> list[ActorMetrics]:
    rollouts, gains = hf.minibatches(rollout, parts or 2), hf.minibatches(advantages, parts or 2)
    return [updated(part, gain, actor) for part, gain in zip(rollouts, gains, strict=True)]


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(prompts)
    advantages = gained(reward.score(rollout), rollout)
    return [*epoch(rollout, advantages, actor), *epoch(rollout, advantages, actor, 4)]


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
