# mypy: disable-error-code="empty-body, arg-type"
"""A policy in bfloat16 gives its hidden states to a value head in float32.

Seen: https://github.com/hiyouga/LlamaFactory/issues/551
Elsewhere: "expected scalar type Float but found BFloat16" in the first generation; with other flags, a loss of NaN.
"""

import hfdsl as hf
from hfdsl import Dispatch, bf16, f32, register
from tests.corpus.vocabulary import B, P, Prompts, R, T, Values


class H(hf.Dim):
    """Hidden size."""


class Hidden(hf.Batch):
    hidden: bf16[B, T, H]


class Llama(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Hidden: ...


class ValueHead(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def values(self, hidden: f32[B, T, H]) -> Values: ...


@hf.dataflow
def ppo(prompts: Prompts, policy: Llama, head: ValueHead) -> Values:
    return head.values(policy.generate(prompts).hidden)  # <- HF220


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(policy=hf.place(Llama, pool=pool), head=hf.place(ValueHead, pool=pool)),
    dims={B: 8, P: 256, R: 256, H: 4096},
)
