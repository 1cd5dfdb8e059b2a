# mypy: disable-error-code="empty-body"
"""One generation per prompt: the advantage of a group of one is meaningless.

Seen: https://github.com/huggingface/trl/pull/3199
Elsewhere: TRL's constructor complained that 4 is not divisible by 1, and listed 2 and 4 as valid.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Reward, Rollout, Scores


@dataclass(frozen=True)
class GRPOConfig:
    num_generations: int = 1


class Policy(hf.Worker):
    def __init__(self, config: GRPOConfig) -> None: ...

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("num_generations >= 2")
    def learn_from_groups(self, rollout: Rollout, scores: Scores) -> ActorMetrics: ...


config = GRPOConfig()


@hf.dataflow
def grpo(prompts: Prompts, policy: Policy, reward: Reward) -> ActorMetrics:
    rollout = policy.generate(hf.repeat(prompts, config.num_generations))
    return policy.learn_from_groups(rollout, reward.score(rollout))  # <- HF322


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    grpo,
    hf.Deployment(policy=hf.place(Policy, config, pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 4, P: 512, R: 512},
)
