# mypy: disable-error-code="empty-body"
"""A batch of 1 completion cannot hold a group of 8 generations.

Seen: https://github.com/huggingface/trl/issues/2858
Elsewhere: TRL raises a ValueError when its trainer is built on every rank.
"""

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
)

NUM_GENERATIONS = 8


@hf.function(rows=hf.Grouped(NUM_GENERATIONS))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(completions: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(completions)
    advantages = group_advantages(reward.score(rollout), rollout)  # <- HF313
    return actor.update(rollout, advantages)


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    grpo,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 1, P: 512, R: 1024},
)
