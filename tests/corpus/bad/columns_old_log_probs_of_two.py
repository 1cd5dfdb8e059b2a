# mypy: disable-error-code="empty-body"
"""Both the rollout engine and the actor write old log-probabilities into one batch.

Seen: https://github.com/verl-project/verl/issues/1605
Elsewhere: union asserts that both tensors are equal, in the driver, after rollout and recomputation.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import B, P, Prompts, R, T


class Generated(hf.Batch):
    ids: i64[B, T]
    old_log_probs: f32[B, R]


class OldLogProbs(hf.Batch):
    old_log_probs: f32[B, R]


class ActorRollout(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate_sequences(self, prompts: Prompts) -> Generated: ...

    @register(Dispatch.DP_PROTO)
    def compute_log_prob(self, batch: Generated) -> OldLogProbs: ...


@hf.dataflow
def fit(prompts: Prompts, actor: ActorRollout) -> Generated:
    batch = actor.generate_sequences(prompts)
    old = actor.compute_log_prob(batch)
    return hf.merge(Generated, batch, old)  # <- HF205


experiment = hf.Experiment(
    fit, hf.Deployment(actor=hf.place(ActorRollout, pool=hf.ResourcePool([8]))), dims={B: 1024, P: 512, R: 1024}
)
