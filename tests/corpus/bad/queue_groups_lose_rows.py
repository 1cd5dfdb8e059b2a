"""Late rows are dropped one by one, and what is left of a group is compared with the next group.

Seen: https://github.com/PrimeIntellect-ai/prime-rl/pull/2960
Elsewhere: whole groups were lost with a late row.
"""

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
    queue_places,
)


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(hf.repeat(prompts, 8))
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="drop")  # <- HF747
    metrics = learner.learn(batch, gains_over_group(batch, batch, group=8))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
