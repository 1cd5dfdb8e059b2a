"""A filter before a queue, whose rows start over where there are fewer."""

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
    Scores,
    gains,
    prompts_of,
    queue_places,
)


class Solved(hf.Batch):
    keep: hf.bool_[B]


@hf.function(rows=hf.Whole)
def solved(scores: Scores) -> Solved:
    some = scores.reward.tensor > 0.25
    return Solved(keep=some | ~some.any())


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    kept = hf.filter(scored, solved(scored).keep)
    batch = hf.queue(hf.fill(kept, 8), lag=1, late="drop")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
