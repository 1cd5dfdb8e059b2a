# mypy: disable-error-code="empty-body, arg-type"
"""A reward function returns 0 and 1 as integers, but the trainer computes with floats.

Seen: https://github.com/CarperAI/trlx/pull/520
Elsewhere: a tensor without a dtype infers it from its numbers, so it depends on the user's reward function.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout


class Correct(hf.Batch):
    correct: i64[B]


class RewardFn(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def grade(self, rollout: Rollout) -> Correct: ...


@hf.function(rows=hf.Whole)
def scaled(rollout: Rollout, scores: f32[B]) -> Advantages: ...


@hf.dataflow
def ppo(prompts: Prompts, model: Actor, reward_fn: RewardFn) -> ActorMetrics:
    rollout = model.generate(prompts)
    rewards = reward_fn.grade(rollout)
    return model.update(rollout, scaled(rollout, rewards.correct))  # <- HF220


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(model=hf.place(Actor, PolicyConfig(), pool=pool), reward_fn=hf.place(RewardFn, pool=pool)),
    dims={B: 128, P: 512, R: 48},
)
