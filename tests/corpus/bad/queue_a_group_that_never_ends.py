"""A step waits for a number of whole groups, but a group that fails is not replaced.

Seen: https://github.com/NVIDIA-NeMo/RL/issues/3238
Elsewhere: the buffer stays a few groups short of the step, training never resumes, and a resumed run is stuck again.
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


class Ended(hf.Batch):
    keep: hf.bool_[B]


@hf.function(rows=hf.Grouped(8))
def all_ended(rollout: Rollout) -> Ended:
    return Ended(keep=(~rollout.response_mask.tensor[:, -1]).view(-1, 8).all(1).repeat_interleave(8))


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(hf.repeat(prompts, 8))
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    ended = hf.filter(scored, all_ended(rollout).keep, group=8)
    batch = hf.queue(ended, rows=512, group=8, lag=1, late="wait")  # <- HF745
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
