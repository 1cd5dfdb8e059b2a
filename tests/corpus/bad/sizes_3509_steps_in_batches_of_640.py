# mypy: disable-error-code="empty-body"
"""Every turn of a conversation is a row: 3509 rows go into mini-batches of 128 * 5.

Seen: https://github.com/NovaSky-AI/SkyRL/pull/1483
Elsewhere: SkyRL asserts that the batch is divisible by the mini-batch, in the first update, after generation.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, R, Rollout

POLICY_MINI_BATCH, SAMPLES = 128, 5


class Policy(hf.Worker):
    def __init__(self, mini_batch: int) -> None: ...

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    @hf.requires("B % mini_batch == 0")
    def ppo_train(self, steps: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.function(rows=hf.Whole)
def step_wise_advantages(steps: Rollout) -> Advantages: ...


@hf.dataflow
def train(steps: Rollout, policy: Policy) -> ActorMetrics:
    return policy.ppo_train(steps, step_wise_advantages(steps))  # <- HF322


experiment = hf.Experiment(
    train,
    hf.Deployment(policy=hf.place(Policy, POLICY_MINI_BATCH * SAMPLES, pool=hf.ResourcePool([4]))),
    dims={B: 3509, P: 1024, R: 512},
)
