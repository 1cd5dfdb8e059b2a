"""Scores are divided by the best of the batch, which is the best of each GPU."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    gains,
    prompts_of,
)


@hf.function
def relative(scores: Scores) -> Scores:
    best = scores.reward.tensor.max().clamp(min=1e-6)
    return Scores(reward=scores.reward.tensor / best)  # <- HF338


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gains(relative(reward.score(rollout)), rollout))


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
