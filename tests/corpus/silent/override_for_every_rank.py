# mypy: disable-error-code="override"
"""The placed reward model is registered so that every rank scores all rows."""

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
    Scores,
    Sequences,
    prompts_of,
)


class Judge(Reward):
    @register(Dispatch.ONE_TO_ALL)
    def score(self, sequences: Sequences) -> Scores:  # <- HF541
        return super().score(sequences)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Judge, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
