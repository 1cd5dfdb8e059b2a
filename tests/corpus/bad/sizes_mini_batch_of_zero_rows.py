# mypy: disable-error-code="empty-body"
"""A mini-batch of 4 prompts on 8 ranks is 4 // 8 = 0 rows on each of them.

Seen: https://github.com/verl-project/verl/pull/552
Elsewhere: splitting by 0 never ends: the first policy update hangs without a message.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, Prompts, R, Rollout


class Actor(hf.Worker):
    def __init__(self, ppo_mini_batch_size: int, world_size: int) -> None: ...

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("ppo_mini_batch_size // world_size > 0")
    def update_policy(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.function
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def step(prompts: Prompts, actor: Actor) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update_policy(rollout, advantages_of(rollout))  # <- HF322


experiment = hf.Experiment(
    step,
    hf.Deployment(actor=hf.place(Actor, ppo_mini_batch_size=4, world_size=8, pool=hf.ResourcePool([8]))),
    dims={B: 64, P: 512, R: 512},
)
