# mypy: disable-error-code="override"
"""The placed policy returns sequences, whose log-probs are computed elsewhere."""

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
    Sequences,
    prompts_of,
)


class Engine(Actor):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Sequences:  # <- HF541
        return super().generate(prompts)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
