# mypy: disable-error-code="empty-body, arg-type"
"""A LoRA policy trained in bfloat16 is used with a rollout record in float32.

Seen: https://github.com/llava-rlhf/LLaVA-RLHF/issues/38
Elsewhere: a RuntimeError (Float against BFloat16) inside generate of the first rollout, after all models are loaded.
"""

import hfdsl as hf
from hfdsl import Dispatch, bf16, f32, i64, register
from tests.corpus.vocabulary import B, P, Prompts, R, T


class Response(hf.Batch):
    ids: i64[B, T]
    logprobs: bf16[B, R]


class PpoRollouts(hf.Batch):
    ids: i64[B, T]
    logprobs: f32[B, R]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def respond(self, queries: Prompts) -> Response: ...


@hf.dataflow
def rollout(queries: Prompts, policy: Policy) -> PpoRollouts:
    response = policy.respond(queries)
    return PpoRollouts(ids=response.ids, logprobs=response.logprobs)  # <- HF220


experiment = hf.Experiment(
    rollout, hf.Deployment(policy=hf.place(Policy, pool=hf.ResourcePool([1]))), dims={B: 4, P: 512, R: 896}
)
