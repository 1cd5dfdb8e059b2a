"""A frozen model hands its weights to an engine that samples as a teacher; it trains nothing."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Engine,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    gains,
    prompts_of,
)


class Frozen(Actor):
    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:
        return self.table.tolist()


@hf.dataflow
def program(prompts: Prompts, teacher: Frozen, engine: Engine, learner: Actor, reward: Reward) -> ActorMetrics:
    hf.sync(teacher, engine)
    rollout = engine.sample(prompts)
    return learner.update(rollout, gains(reward.score(rollout), rollout))


train, serve = hf.ResourcePool([4], name="trainers"), hf.ResourcePool([2], name="engines")
experiment = hf.Experiment(
    program,
    hf.Deployment(
        teacher=hf.place(Frozen, PolicyConfig(), pool=train),
        learner=hf.place(Actor, PolicyConfig(), pool=train),
        engine=hf.place(Engine, PolicyConfig(), pool=serve),
        reward=hf.place(Reward, pool=serve),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
