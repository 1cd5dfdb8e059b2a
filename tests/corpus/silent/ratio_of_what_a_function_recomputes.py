"""A function packs rows of a queue with log-probs of the current policy, so that nothing corrects for the lag."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Engine,
    Learner,
    P,
    Prompts,
    R,
    RefLogProbs,
    Reward,
    Rollout,
    Scored,
    Sequences,
    gains,
    queue_places,
)


@hf.function
def packed(sequences: Sequences, policy: RefLogProbs) -> Rollout:
    return Rollout(
        ids=sequences.ids.tensor,
        response_mask=sequences.response_mask.tensor,
        log_probs=policy.ref_log_probs.tensor,
    )


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    batch = hf.queue(hf.merge(Scored, rollout, reward.score(rollout)), lag=4, late="wait")
    rollout_now = packed(batch, learner.log_probs_now(batch))
    metrics = learner.learn(rollout_now, gains(batch, batch))  # <- HF750
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 64, P: 512, R: 4})
