# mypy: disable-error-code="empty-body"
"""A rollout of 512 rows is split over 6 GPUs.

Seen: https://github.com/hiyouga/EasyR1/issues/44
Elsewhere: EasyR1 asserts equal chunks in the driver, after some training steps.
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


@hf.function(rows=hf.Grouped(4))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 4))  # <- HF310
    return actor.update(rollout, group_advantages(reward.score(rollout), rollout))


pool = hf.ResourcePool([6])
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(mini_batch=128), pool=pool),
        reward=hf.place(Reward, pool=hf.ResourcePool([1])),
    ),
    dims={B: 128, P: 2048, R: 2048},
)
