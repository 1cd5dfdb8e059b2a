"""768 generation workers for batches of 256 and a staleness of 1: there are places for 512.

Seen: https://github.com/NovaSky-AI/SkyRL/pull/1798
Elsewhere: a comment in the configuration limits the workers to the batch times (staleness + 1).
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, rows=256, lag=1, late="wait")  # <- HF745
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 768, P: 512, R: 4})
