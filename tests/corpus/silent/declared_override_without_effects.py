"""A derived class overrides the update and forgets its effects: that nothing syncs is then not seen."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    gains,
    prompts_of,
)


class Clipped(Learner):
    @register(Dispatch.THREE_D_PROTO)
    def learn(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:  # <- HF709
        return self.update(rollout, advantages)


@hf.dataflow
def program(prompts: Prompts, learner: Clipped, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    return learner.learn(rollout, gains(reward.score(rollout), rollout))


train, serve = hf.ResourcePool([4], name="trainers"), hf.ResourcePool([2], name="engines")
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Clipped, PolicyConfig(), pool=train),
        engine=hf.place(Engine, PolicyConfig(), pool=serve),
        reward=hf.place(Reward, pool=serve),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
