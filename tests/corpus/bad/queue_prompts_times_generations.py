"""60 rows a step, in groups of 8: the last group of every step is cut.

Seen: https://github.com/NovaSky-AI/SkyRL/issues/1205
Elsewhere: the trainer asks for a training batch that is just a mini-batch; other sizes are refused.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, group=8, lag=2, late="refill")  # <- HF745
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 60, P: 512, R: 4})
