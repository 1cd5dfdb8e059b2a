"""Responses and their scores go through two queues, each of which drops what is late."""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, gains, queue_places


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    batch = hf.queue(rollout, lag=4, late="drop")
    scores = hf.queue(reward.score(rollout), lag=4, late="drop")  # <- HF746
    metrics = learner.learn(batch, gains(scores, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 64, P: 512, R: 4})
