# mypy: disable-error-code="empty-body"
"""A batch that is padded for dp=4 alone leaves Megatron's micro-batches of 4 uneven.

Seen: https://github.com/NovaSky-AI/SkyRL/pull/1112
Elsewhere: Megatron asserts in the forward pass, since it takes micro-batches of one size only.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, R, RefLogProbs, Sequences


@dataclass(frozen=True)
class TrainConfig:
    micro_batch: int = 4
    dp: int = 4


class MegatronPolicy(hf.Worker):
    def __init__(self, config: TrainConfig) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % (dp * micro_batch) == 0")
    def forward(self, batch: Sequences) -> RefLogProbs: ...


@hf.dataflow
def tinker(batch: Sequences, policy: MegatronPolicy) -> RefLogProbs:
    return policy.forward(batch)  # <- HF322


experiment = hf.Experiment(
    tinker,
    hf.Deployment(policy=hf.place(MegatronPolicy, TrainConfig(), pool=hf.ResourcePool([8]), mesh=hf.Mesh(dp=4, tp=2))),
    dims={B: 20, P: 512, R: 512},
)
