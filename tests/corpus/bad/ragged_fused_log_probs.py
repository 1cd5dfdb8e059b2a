# mypy: disable-error-code="empty-body, arg-type"
"""One branch of the forward pass returns log-probabilities padded to one length, but the loss takes them packed.

Seen: https://github.com/verl-project/verl/pull/6846
Elsewhere: an assertion on the number of values in the conversion from packed to padded, only with one of two flags.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import ActorMetrics, B, P, R, T


class Packed(hf.Batch):
    ids: i64[B, hf.Ragged[T]]


class FsdpEngine(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def fused_log_probs(self, batch: Packed) -> f32[B, T]: ...

    @register(Dispatch.THREE_D_PROTO)
    def ppo_loss(self, batch: Packed, log_probs: f32[B, hf.Ragged[T]]) -> ActorMetrics: ...


@hf.dataflow
def grpo(batch: Packed, engine: FsdpEngine) -> ActorMetrics:
    return engine.ppo_loss(batch, engine.fused_log_probs(batch))  # <- HF214


experiment = hf.Experiment(
    grpo, hf.Deployment(engine=hf.place(FsdpEngine, pool=hf.ResourcePool([8]))), dims={B: 8, P: 512, R: 256}
)
