# mypy: disable-error-code="empty-body"
"""The PPO mini-batch counts prompts, but is set to prompts times samples, and so exceeds the training batch.

Seen: https://github.com/verl-project/verl/pull/1265
Elsewhere: verl asserts it; a user thought that the assertion was wrong and asked to delete it.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, Prompts, R, Rollout

TRAIN_BATCH, ROLLOUT_N = 128, 8


class Actor(hf.Worker):
    def __init__(self, mini_batch: int, rollout_n: int) -> None: ...

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("mini_batch * rollout_n <= B")
    def update(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.function(rows=hf.Grouped(ROLLOUT_N))
def group_advantages(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, ROLLOUT_N))
    return actor.update(rollout, group_advantages(rollout))  # <- HF322


actor = hf.place(Actor, mini_batch=TRAIN_BATCH * ROLLOUT_N, rollout_n=ROLLOUT_N, pool=hf.ResourcePool([8]))
experiment = hf.Experiment(grpo, hf.Deployment(actor=actor), dims={B: TRAIN_BATCH, P: 512, R: 1024})
