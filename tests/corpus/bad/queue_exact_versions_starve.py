"""Steps of 160 rows for batches of 64: the remainder takes up places of the next step, but makes no batch.

Seen: https://github.com/NVIDIA-NeMo/RL/pull/2458
Elsewhere: training stalls until the buffer has the trajectories of one version; a window of versions was added.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, rows=64, lag=1, late="drop")  # <- HF745
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 160, P: 512, R: 4})
