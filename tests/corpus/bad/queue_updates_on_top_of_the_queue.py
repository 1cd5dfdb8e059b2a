"""A loss made for 8 versions gets rows that waited in two queues, with lags of 8 versions and of 1.

Seen: https://github.com/radixark/miles/issues/1697
Elsewhere: off-policyness of the batch adds to that of the queue, without a warning.
"""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Engine,
    Learner,
    P,
    Prompts,
    R,
    Reward,
    Rollout,
    Scored,
    gains,
    queue_places,
)


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    judged = hf.queue(scored, lag=8, late="wait")
    better = hf.merge(Scored, hf.merge(Rollout, judged), reward.score(judged))
    batch = hf.queue(better, lag=1, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))  # <- HF749
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
