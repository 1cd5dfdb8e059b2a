"""An engine loads weights, and its sampling does not say that it works with them."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
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


class Sampling(Actor):
    @register(Dispatch.DP_PROTO)
    def sample(self, prompts: Prompts) -> Rollout:
        return self.generate(prompts)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:  # <- HF709
        import torch

        self.table = torch.tensor(weights)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Sampling, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    return learner.learn(rollout, gains(reward.score(rollout), rollout))


train, serve = hf.ResourcePool([4], name="trainers"), hf.ResourcePool([2], name="engines")
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=train),
        engine=hf.place(Sampling, PolicyConfig(), pool=serve),
        reward=hf.place(Reward, pool=serve),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
