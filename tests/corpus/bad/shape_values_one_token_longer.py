# mypy: disable-error-code="empty-body, arg-type"
"""Values have one more entry than advantages, and returns are the sum of both.

Seen: https://github.com/HarderThenHarder/transformers_tasks/issues/11
Elsewhere: a RuntimeError (16 against 17 at dimension 1) in the first PPO step, after generation and scoring.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, f32, register
from tests.corpus.vocabulary import Actor, Advantages, B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores


class Values(hf.Batch):
    values: f32[B, Add[R, Literal[1]]]


class Returns(hf.Batch):
    returns: f32[B, R]


class ValueHead(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def values(self, rollout: Rollout) -> Values: ...


@hf.function
def advantages_of(rollout: Rollout, scores: Scores) -> Advantages: ...


@hf.function
def returns_of(advantages: f32[B, R], values: f32[B, R]) -> Returns: ...


@hf.dataflow
def ppo(prompts: Prompts, actor: Actor, head: ValueHead, reward: Reward) -> Returns:
    rollout = actor.generate(prompts)
    advantages = advantages_of(rollout, reward.score(rollout))
    return returns_of(advantages.advantages, head.values(rollout).values)  # <- HF210


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        head=hf.place(ValueHead, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 32, P: 8, R: 16},
)
