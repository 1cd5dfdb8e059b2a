# mypy: disable-error-code="empty-body"
"""A global batch of 3 preference pairs is split over 2 data-parallel ranks of a 16-GPU, tp=8 mesh.

Seen: https://github.com/NVIDIA-NeMo/RL/pull/3345
Elsewhere: a crash at the first training step; its message names two things that are not configuration keys.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import ActorMetrics, B, P, R, T


class Pairs(hf.Batch):
    chosen: i64[B, T]
    rejected: i64[B, T]


class PairRewards(hf.Batch):
    chosen_rewards: f32[B]
    rejected_rewards: f32[B]


class Policy(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def train(self, pairs: Pairs, reference: PairRewards) -> ActorMetrics: ...


class ReferencePolicy(hf.Worker):
    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    def rewards(self, pairs: Pairs) -> PairRewards: ...


@hf.dataflow
def mpo(pairs: Pairs, policy: Policy, reference: ReferencePolicy) -> ActorMetrics:
    return policy.train(pairs, reference.rewards(pairs))  # <- HF310


experiment = hf.Experiment(
    mpo,
    hf.Deployment(
        policy=hf.place(Policy, pool=hf.ResourcePool([8, 8]), mesh=hf.Mesh(dp=2, tp=8)),
        reference=hf.place(ReferencePolicy, pool=hf.ResourcePool([1])),
    ),
    dims={B: 3, P: 1024, R: 1024},
)
