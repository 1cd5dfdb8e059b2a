# mypy: disable-error-code="empty-body"
"""Sequence parallelism splits trajectories of 1533 tokens in two.

Seen: https://github.com/modelscope/ms-swift/issues/9996
Elsewhere: an assertion on every rank in training that 1533 is not a multiple of 2, after the rollouts have been split.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, R, Rollout


class SwiftPolicy(hf.Worker):
    def __init__(self, sp_world_size: int) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("(P + R) % sp_world_size == 0")
    def update(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.function
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(rollout: Rollout, policy: SwiftPolicy) -> ActorMetrics:
    return policy.update(rollout, advantages_of(rollout))  # <- HF322


experiment = hf.Experiment(
    grpo,
    hf.Deployment(policy=hf.place(SwiftPolicy, sp_world_size=2, pool=hf.ResourcePool([8]), mesh=hf.Mesh(dp=4, tp=2))),
    dims={B: 32, P: 509, R: 1024},
)
