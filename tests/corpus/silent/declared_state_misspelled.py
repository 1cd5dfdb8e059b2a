"""The update declares a misspelled state: that the engine samples one step late is then not seen."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    Engine,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    gains,
    prompts_of,
)


class Trainer(Actor):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("polciy")
    def learn(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:
        return self.update(rollout, advantages)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:  # <- HF709
        return self.table.tolist()


@hf.dataflow
def program(prompts: Prompts, learner: Trainer, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    hf.sync(learner, engine)
    return learner.learn(rollout, gains(reward.score(rollout), rollout))


train, serve = hf.ResourcePool([4], name="trainers"), hf.ResourcePool([2], name="engines")
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Trainer, PolicyConfig(), pool=train),
        engine=hf.place(Engine, PolicyConfig(), pool=serve),
        reward=hf.place(Reward, pool=serve),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
