"""A batch in two mini-batches, with the advantages of the whole."""

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
    parts = hf.minibatches(batch, 2)
    metrics = [learner.learn(part, gains(part, part)) for part in parts]
    hf.sync(learner, engine)
    return metrics[-1]


experiment = hf.Experiment(program, queue_places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
