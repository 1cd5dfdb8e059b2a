# mypy: disable-error-code="empty-body, attr-defined"
"""The reward reads a column 'reward_model' that this preprocessing of GSM8K does not write.

Seen: https://github.com/verl-project/verl/issues/758
Elsewhere: a KeyError in the reward manager, after the first generation.
"""

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout, Scores


class Truth(hf.Batch):
    reward_model: hf.Obj[dict[str, Any], B]


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


class Gsm8kReward(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout, truth: Truth) -> Scores: ...


@hf.dataflow
def rollout_and_score(prompts: Prompts, engine: Engine, reward: Gsm8kReward) -> Scores:
    rollout = engine.generate(prompts)
    return reward.score(rollout, Truth(reward_model=prompts.reward_model))  # <- HF201


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    rollout_and_score,
    hf.Deployment(engine=hf.place(Engine, pool=pool), reward=hf.place(Gsm8kReward, pool=pool)),
    dims={B: 256, P: 512, R: 256},
)
