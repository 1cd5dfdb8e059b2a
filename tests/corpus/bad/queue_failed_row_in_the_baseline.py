"""A row that failed stays in its group with a mask and a reward of 0.

Seen: https://github.com/NVIDIA-NeMo/RL/issues/3589
Elsewhere: silent: the baseline of the other rows is too low.
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
    rollout = engine.sample(hf.repeat(prompts, 4))
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="mask")  # <- HF747
    metrics = learner.learn(batch, gains_over_group(batch, batch, group=4))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
