"""One response to each prompt, whose advantage over its group is 0.

Seen: https://github.com/OpenRLHF/OpenRLHF/issues/1250
Elsewhere: it shows at run time.
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
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    metrics = learner.learn(batch, gains_over_group(batch, batch, group=1))  # <- HF314
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
