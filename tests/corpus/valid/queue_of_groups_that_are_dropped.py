"""Late groups leave the queue as a whole, and advantages compare what stays."""

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
    gains_over_group,
    prompts_of,
    queue_places,
)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(hf.repeat(prompts, 4))
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, group=4, lag=8, late="drop")
    metrics = learner.learn(batch, gains_over_group(batch, batch, group=4))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
