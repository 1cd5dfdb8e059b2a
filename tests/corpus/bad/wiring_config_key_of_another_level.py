# mypy: disable-error-code="empty-body"
"""A worker reads a key that its part of the configuration does not have.

Seen: https://github.com/verl-project/verl/issues/1165
Elsewhere: the configuration library raises for a missing key, on the workers, while a model is built.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, R, Rollout, Scores


@dataclass(frozen=True)
class MegatronConfig:
    micro_batch_size: int = 4


class RewardModelWorker(hf.Worker):
    def __init__(self, megatron: MegatronConfig) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % reward_model_micro_batch_size == 0")
    def compute_rm_score(self, rollout: Rollout) -> Scores: ...  # <- HF323


@hf.dataflow
def rewards(rollout: Rollout, reward: RewardModelWorker) -> Scores:
    return reward.compute_rm_score(rollout)


experiment = hf.Experiment(
    rewards,
    hf.Deployment(
        reward=hf.place(RewardModelWorker, MegatronConfig(), pool=hf.ResourcePool([8]), mesh=hf.Mesh(dp=4, tp=2))
    ),
    dims={B: 64, P: 512, R: 512},
)
