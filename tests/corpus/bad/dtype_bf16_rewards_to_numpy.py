# mypy: disable-error-code="empty-body, arg-type"
"""Rewards are bfloat16 in mixed-precision training, and the logger does not support that dtype.

Seen: https://github.com/huggingface/trl/pull/1391
Elsewhere: "Got unsupported ScalarType BFloat16" when the first step's rewards are logged.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, bf16, f32, register
from tests.corpus.vocabulary import B, P, Prompts


class ImageRewards(hf.Batch):
    rewards: bf16[B]


class Logged(hf.Batch):
    reward_mean: hf.Metric[float, Literal["mean"]]
    reward_std: hf.Metric[float, Literal["mean"]]


class Diffusion(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def sample_and_score(self, prompts: Prompts) -> ImageRewards: ...


@hf.function(rows=hf.Whole)
def log_rewards(rewards: f32[B]) -> Logged: ...


@hf.dataflow
def ddpo(prompts: Prompts, pipeline: Diffusion) -> Logged:
    scored = pipeline.sample_and_score(prompts)
    return log_rewards(scored.rewards)  # <- HF220


experiment = hf.Experiment(
    ddpo, hf.Deployment(pipeline=hf.place(Diffusion, pool=hf.ResourcePool([1]))), dims={B: 8, P: 77}
)
