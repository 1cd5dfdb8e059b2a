# mypy: disable-error-code="arg-type"
"""The dataflow that samples takes a policy and is given the reference: its class has another ``generate``."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Table,
    prompts_of,
)


class Frozen(Table):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        raise NotImplementedError


@hf.dataflow
def sampled(prompts: Prompts, policy: Actor) -> Rollout:
    return policy.generate(prompts)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, frozen: Frozen, reward: Reward) -> ActorMetrics:
    rollout = sampled(prompts, frozen)  # <- HF240
    return actor.update(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        frozen=hf.place(Frozen, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
