"""Old log-probs are recomputed with the current policy, so every ratio is 1.

Seen: https://github.com/areal-project/AReaL/issues/201
Elsewhere: the importance sampling and the clip of PPO have no effect, as a reader of the code noticed.
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
    Rollout,
    Scored,
    gains,
    queue_places,
)


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="wait")
    now = learner.log_probs_now(batch).ref_log_probs
    rollout_now = Rollout(ids=batch.ids, response_mask=batch.response_mask, log_probs=now)
    metrics = learner.learn(rollout_now, gains(batch, batch))  # <- HF750
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
