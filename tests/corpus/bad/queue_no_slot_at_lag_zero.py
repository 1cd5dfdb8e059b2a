"""A staleness of 0 with a sampler on GPUs of its own: nothing may be in flight while the trainer works.

Seen: https://github.com/huggingface/trl/pull/5656
Elsewhere: the limit is the staleness times the rows of a step: no slot is ever free, and the run waits.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=0, late="wait")  # <- HF744
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
