"""The ratio is to the current policy, and advantages are weighted by current / sampling policy: decoupled by hand."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
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
    prompts_of,
    queue_places,
)


@hf.function
def packed(sequences: Sequences, policy: RefLogProbs) -> Rollout:
    return Rollout(
        ids=sequences.ids.tensor,
        response_mask=sequences.response_mask.tensor,
        log_probs=policy.ref_log_probs.tensor,
    )


@hf.function
def weighted(rollout: Rollout, policy: RefLogProbs, advantages: Advantages) -> Advantages:
    ratio = (policy.ref_log_probs.tensor - rollout.log_probs.tensor).exp().clamp(max=2)
    return Advantages(advantages=ratio * advantages.advantages.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    batch = hf.queue(hf.merge(Scored, rollout, reward.score(rollout)), lag=4, late="wait")
    now = learner.log_probs_now(batch)
    metrics = learner.learn(packed(batch, now), weighted(batch, now, gains(batch, batch)))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
