# mypy: disable-error-code="empty-body"
"""16 prompts are split into 32 chunks, since generation splits over the pipeline stages, too.

Seen: https://github.com/verl-project/verl/issues/1004
Elsewhere: verl's Megatron backend asserts equal chunks at generation; three more assertions on sizes follow one by one.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout


class MegatronActor(hf.Worker):
    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generate_sequences(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def compute_log_prob(self, rollout: Rollout) -> Rollout: ...


@hf.dataflow
def experience(prompts: Prompts, actor: MegatronActor) -> Rollout:
    return actor.compute_log_prob(actor.generate_sequences(prompts))  # <- HF310


mesh = hf.Mesh(pp=2, dp=16, tp=2, gen_pp=1, gen_tp=2)
experiment = hf.Experiment(
    experience,
    hf.Deployment(actor=hf.place(MegatronActor, pool=hf.ResourcePool([8] * 8), mesh=mesh)),
    dims={B: 16, P: 1024, R: 15360},
)
