# mypy: disable-error-code="empty-body"
"""Validation rows are padded for the ranks of one role and then split over the generation replicas of a folded mesh.

Seen: https://github.com/verl-project/verl/issues/149
Elsewhere: verl pads to one group's world size, and dispatch, which splits by another number, asserts equal chunks.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout


class ActorRollout(hf.Worker):
    @register(Dispatch.THREE_D_PROTO, pad="cycle")
    def tokenized(self, prompts: Prompts) -> Prompts: ...

    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate_sequences(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def validate(prompts: Prompts, actor: ActorRollout) -> Rollout:
    padded = actor.tokenized(prompts)
    return actor.generate_sequences(padded)  # <- HF310


mesh = hf.Mesh(pp=1, dp=2, tp=4, gen_pp=1, gen_tp=1)
experiment = hf.Experiment(
    validate,
    hf.Deployment(actor=hf.place(ActorRollout, pool=hf.ResourcePool([8]), mesh=mesh)),
    dims={B: 1322, P: 512, R: 512},
)
