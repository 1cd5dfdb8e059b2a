# mypy: disable-error-code="empty-body"
"""A user tries a batch of 5 prompts on an engine with 2 replicas and a policy with 4 shards.

Seen: https://github.com/NVIDIA-NeMo/RL/issues/125
Elsewhere: no batch below dp and no uneven shards; worker groups must be rebuilt for another batch size.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, RefLogProbs, Rollout


class VllmGeneration(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


class HfPolicy(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def get_logprobs(self, rollout: Rollout) -> RefLogProbs: ...


@hf.dataflow
def score(prompts: Prompts, generation: VllmGeneration, policy: HfPolicy) -> RefLogProbs:
    return policy.get_logprobs(generation.generate(prompts))  # <- HF310


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    score,
    hf.Deployment(
        generation=hf.place(VllmGeneration, pool=pool, mesh=hf.Mesh(dp=2, tp=2)),
        policy=hf.place(HfPolicy, pool=pool),
    ),
    dims={B: 5, P: 128, R: 128},
)
