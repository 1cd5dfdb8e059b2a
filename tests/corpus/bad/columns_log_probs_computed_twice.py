# mypy: disable-error-code="empty-body"
"""A refactoring left two calls of compute_log_prob, and both results are united with the batch.

Seen: https://github.com/rllm-org/rllm/issues/303
Elsewhere: the second union finds tensors that differ and asserts, after the trajectories have been generated.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import B, P, R, Sequences


class OldLogProb(hf.Batch):
    old_log_probs: f32[B, R]


class Trajectories(Sequences):
    old_log_probs: f32[B, R]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def compute_log_prob(self, batch: Sequences) -> OldLogProb: ...


@hf.dataflow
def agent_ppo(batch: Sequences, actor: Actor) -> Trajectories:
    old = actor.compute_log_prob(batch)
    again = actor.compute_log_prob(batch)
    return hf.merge(Trajectories, batch, old, again)  # <- HF205


experiment = hf.Experiment(
    agent_ppo, hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([8]))), dims={B: 512, P: 4096, R: 2048}
)
