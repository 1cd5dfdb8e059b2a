"""After a refactoring the engine of one-step-off training no longer gets the weights.

Seen: https://github.com/verl-project/verl/pull/5031
Elsewhere: the change of the engine broke the asynchronous trainers, which sent weights in their own way.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)  # <- HF510
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    return learner.learn(batch, gains(batch, batch))


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
