"""The scores of a step are logged beside the metrics of an update, whose groups are of several steps."""

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
    queue_places,
)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> tuple[ActorMetrics, Scores]:
    rollout = engine.sample(prompts)
    scores = reward.score(rollout)
    batch = hf.queue(hf.merge(Scored, rollout, scores), lag=4, late="drop")  # <- HF765
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics, scores


experiment = hf.Experiment(program, queue_places(), dims={B: 64, P: 512, R: 4})
