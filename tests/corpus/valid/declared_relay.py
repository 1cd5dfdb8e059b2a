"""A role loads weights only to hand them on to an engine in another place."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    gains,
    prompts_of,
)


class Relay(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def keep(self, weights: list[list[float]]) -> None:
        self.weights = weights

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def kept(self) -> list[list[float]]:
        return self.weights


@hf.dataflow
def program(prompts: Prompts, learner: Learner, relay: Relay, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    metrics = learner.learn(rollout, gains(reward.score(rollout), rollout))
    hf.sync(learner, relay)
    hf.sync(relay, engine)
    return metrics


train, serve = hf.ResourcePool([4], name="trainers"), hf.ResourcePool([2], name="engines")
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=train),
        engine=hf.place(Engine, PolicyConfig(), pool=serve),
        reward=hf.place(Reward, pool=serve),
        relay=hf.place(Relay, pool=serve),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
