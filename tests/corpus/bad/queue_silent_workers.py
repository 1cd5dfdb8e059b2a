"""Groups whose task failed never arrive, but the trainer waits until its batch is full.

Seen: https://github.com/NovaSky-AI/SkyRL/issues/1173
Elsewhere: three runs stopped at 125 to 127 of 128 groups, one for more than 29 hours.
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


class Returned(hf.Batch):
    keep: hf.bool_[B]


@hf.function(rows=hf.Grouped(4))
def returned_in_time(rollout: Rollout) -> Returned:
    return Returned(keep=rollout.response_mask.tensor.any(1))


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(hf.repeat(prompts, 4))
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    returned = hf.filter(scored, returned_in_time(rollout).keep, group=4)
    batch = hf.queue(returned, rows=256, group=4, lag=4, late="drop")  # <- HF745
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
