"""What scores is a stage of its own; the lags of two queues add up to what the loss corrects for."""

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
    Scored,
    gains,
    prompts_of,
    queue_places,
)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    sampled = hf.queue(rollout, lag=5, late="wait")
    scored = hf.merge(Scored, sampled, reward.score(sampled))
    batch = hf.queue(scored, lag=3, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
