# mypy: disable-error-code="empty-body, arg-type"
"""A DPO step that computes in float32 receives log-probabilities in bfloat16.

Seen: https://github.com/huggingface/trl/issues/1202
Elsewhere: "expected scalar type Float but found BFloat16" in the first step, after an upgrade of the library.
"""

import hfdsl as hf
from hfdsl import Dispatch, bf16, register
from tests.corpus.vocabulary import ActorMetrics, B, P, R, RefLogProbs, Sequences


class LowPrecision(hf.Batch):
    ref_log_probs: bf16[B, R]


class Reference(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def log_probs(self, pairs: Sequences) -> LowPrecision: ...


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def dpo_loss(self, pairs: Sequences, reference: RefLogProbs) -> ActorMetrics: ...


@hf.dataflow
def dpo(pairs: Sequences, policy: Policy, reference: Reference) -> ActorMetrics:
    low = reference.log_probs(pairs)
    ref = RefLogProbs(ref_log_probs=low.ref_log_probs)  # <- HF220
    return policy.dpo_loss(pairs, ref)


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    dpo,
    hf.Deployment(policy=hf.place(Policy, pool=pool), reference=hf.place(Reference, pool=pool)),
    dims={B: 64, P: 512, R: 512},
)
