"""Responses wait in the queue, and their scores do not: rows of the step before get the scores of this one."""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, gains, queue_places


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scores = reward.score(rollout)
    batch = hf.queue(rollout, lag=1, late="wait")
    advantages = gains(scores, batch)  # <- HF742
    metrics = learner.learn(batch, advantages)
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 64, P: 512, R: 4})
