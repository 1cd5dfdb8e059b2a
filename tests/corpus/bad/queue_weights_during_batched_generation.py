"""New weights are sent while an engine samples whole batches, which takes none between two tokens.

Seen: https://github.com/NovaSky-AI/SkyRL/pull/656
Elsewhere: updates in flight worked for chat completions alone; the pull request adds single requests, not batches.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine, during="sample")  # <- HF753
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
