# mypy: disable-error-code="override"
"""The placed policy learns from returns too, which the dataflow does not compute."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Estimates,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    prompts_of,
)


class WithReturns(Actor):
    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, advantages: Estimates) -> ActorMetrics:  # <- HF541
        return super().update(rollout, advantages)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(WithReturns, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
