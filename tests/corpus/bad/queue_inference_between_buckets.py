"""Weights arrive in two buckets, and inference does not wait: it may run between the two.

Seen: https://github.com/RLinf/RLinf/pull/1456
Elsewhere: the pull request refuses to overlap inference with syncs in buckets, since the model may be partly new.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
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
    Scored,
    gains,
)


class Bucketed(Engine):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load_rest(self, weights: list[list[float]]) -> None: ...


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Bucketed, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)  # <- HF748
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    weights = learner.weights()
    engine.load(weights)
    engine.load_rest(weights)
    return metrics


train, serve, config = hf.ResourcePool([4]), hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train),
    engine=hf.place(Bucketed, config, pool=serve),
    reward=hf.place(Reward, pool=serve),
)
experiment = hf.Experiment(step, places, dims={B: 64, P: 512, R: 4})
