# mypy: disable-error-code="empty-body"
"""A rollout of 298 rows is split into optimizer steps of 32 * 4 rows on a dp=2, tp=4 mesh.

Seen: https://github.com/rllm-org/rllm/pull/630
Elsewhere: rllm padded up to 384 rows, 86 of them wasted, and the number of optimizer steps drifted with the row count.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Advantages, B, P, PolicyConfig, R, Reference, RefLogProbs, Rollout


class MegatronActor(hf.Worker):
    def __init__(self, mini_batch: int, rollout_n: int) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % (mini_batch * rollout_n) == 0")
    def update(self, rollout: Rollout, advantages: Advantages) -> None: ...


@hf.function
def kl_penalized(rollout: Rollout, ref: RefLogProbs) -> Advantages: ...


@hf.dataflow
def agent_step(rollout: Rollout, actor: MegatronActor, reference: Reference) -> RefLogProbs:
    ref = reference.log_probs(rollout)
    actor.update(rollout, kl_penalized(rollout, ref))  # <- HF322
    return ref


pool, mesh = hf.ResourcePool([8]), hf.Mesh(dp=2, tp=4)
experiment = hf.Experiment(
    agent_step,
    hf.Deployment(
        actor=hf.place(MegatronActor, 32, 4, pool=pool, mesh=mesh),
        reference=hf.place(Reference, PolicyConfig(), pool=pool, mesh=mesh),
    ),
    dims={B: 298, P: 4096, R: 1024},
)
