"""Trajectories of up to eight steps ago are trained on without importance weights.

Seen: https://github.com/NVIDIA-NeMo/RL/pull/1098
Elsewhere: without the correction, training collapses after a few hundred steps, says the pull request.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=8, late="drop")
    metrics = learner.reinforce(batch, gains(batch, batch))  # <- HF749
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
