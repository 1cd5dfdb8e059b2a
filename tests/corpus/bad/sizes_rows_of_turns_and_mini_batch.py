# mypy: disable-error-code="empty-body"
"""Turns of conversations are rows: 300 of them fit the 4 ranks, but not mini-batches of 32 prompts times 4 samples.

Seen: https://github.com/rllm-org/rllm/pull/506
Elsewhere: padded for the ranks alone they pass dispatch; the actor's mini-batch iterator asserts in its first update.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, R, Rollout


@dataclass(frozen=True)
class ActorConfig:
    ppo_mini_batch_size: int = 32
    rollout_n: int = 4


class Actor(hf.Worker):
    def __init__(self, config: ActorConfig) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % (ppo_mini_batch_size * rollout_n) == 0")
    def update_actor(self, steps: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.function
def advantages_of(steps: Rollout) -> Advantages: ...


@hf.dataflow
def update(steps: Rollout, actor: Actor) -> ActorMetrics:
    return actor.update_actor(steps, advantages_of(steps))  # <- HF322


experiment = hf.Experiment(
    update,
    hf.Deployment(actor=hf.place(Actor, ActorConfig(), pool=hf.ResourcePool([4]))),
    dims={B: 300, P: 2048, R: 1024},
)
