# mypy: disable-error-code="empty-body"
"""The critic's micro-batch is larger than its mini-batch, so that it accumulates over 0 micro-batches.

Seen: https://github.com/verl-project/verl/issues/405
Elsewhere: the loss is divided by 0 and becomes NaN, with no error.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, CriticMetrics, Estimates, P, R, Rollout, Scores, Values


class Critic(hf.Worker):
    def __init__(self, mini_batch: int, micro_batch: int) -> None: ...

    @register(Dispatch.DP_PROTO)
    def values(self, rollout: Rollout) -> Values: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % mini_batch == 0", "mini_batch // micro_batch >= 1")
    def update(self, rollout: Rollout, estimates: Estimates) -> CriticMetrics: ...


@hf.function
def gae(rollout: Rollout, values: Values, scores: Scores) -> Estimates: ...


@hf.dataflow
def critic_step(rollout: Rollout, scores: Scores, critic: Critic) -> CriticMetrics:
    estimates = gae(rollout, critic.values(rollout), scores)
    return critic.update(rollout, estimates)  # <- HF322


experiment = hf.Experiment(
    critic_step,
    hf.Deployment(critic=hf.place(Critic, mini_batch=32, micro_batch=64, pool=hf.ResourcePool([8]))),
    dims={B: 256, P: 512, R: 512},
)
