# mypy: disable-error-code="empty-body"
"""Sequences of 514 + 512 tokens are split over 4 tensor-parallel ranks.

Seen: https://github.com/verl-project/verl/issues/3296
Elsewhere: Megatron asserts that the first dimension is divisible by the tensor-parallel size, in a forward pass.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, RefLogProbs, Rollout


class MegatronActor(hf.Worker):
    def __init__(self, tp: int) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("(P + R) % tp == 0")
    def compute_log_prob(self, rollout: Rollout) -> RefLogProbs: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: MegatronActor) -> RefLogProbs:
    rollout = actor.generate(hf.repeat(prompts, 2))
    return actor.compute_log_prob(rollout)  # <- HF322


experiment = hf.Experiment(
    grpo,
    hf.Deployment(actor=hf.place(MegatronActor, tp=4, pool=hf.ResourcePool([8] * 12), mesh=hf.Mesh(pp=12, dp=2, tp=4))),
    dims={B: 96, P: 514, R: 512},
)
