# mypy: disable-error-code="empty-body"
"""An example script sets a micro-batch of 80 for mini-batches of 256.

Seen: https://github.com/verl-project/verl/issues/1524
Elsewhere: no message; users ask which of the numbers count prompts, which samples, and how steps are accumulated.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, Prompts, R, Rollout


@dataclass(frozen=True)
class ActorConfig:
    ppo_mini_batch_size: int = 256
    ppo_micro_batch_size_per_gpu: int = 80


class ActorRollout(hf.Worker):
    def __init__(self, config: ActorConfig) -> None: ...

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    def advantages(self, rollout: Rollout) -> Advantages: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("ppo_mini_batch_size % ppo_micro_batch_size_per_gpu == 0")
    def update(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: ActorRollout) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, 5))
    return actor.update(rollout, actor.advantages(rollout))  # <- HF322


experiment = hf.Experiment(
    grpo,
    hf.Deployment(actor=hf.place(ActorRollout, ActorConfig(), pool=hf.ResourcePool([8, 8]))),
    dims={B: 1024, P: 512, R: 1024},
)
