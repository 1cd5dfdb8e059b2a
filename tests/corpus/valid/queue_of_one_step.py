"""One step off: the engine samples while the learner trains on the step before."""

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
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
