# mypy: disable-error-code="empty-body"
"""PPO epochs: several passes over mini-batches, which unroll; the metrics of all of them come back."""

import hfdsl as hf
from tests.check.programs.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
)

EPOCHS, PARTS = 3, 4


class Sample(Rollout):
    ref_log_probs: hf.f32[B, R]
    advantages: hf.f32[B, R]


@hf.function
def advantages_of(rollout: Rollout, scores: Scores) -> Advantages: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(prompts)
    advantages = advantages_of(rollout, reward.score(rollout))
    sample = hf.merge(Sample, rollout, reference.log_probs(rollout), advantages)
    metrics = []
    for _ in range(EPOCHS):
        for part in hf.minibatches(sample, PARTS):
            ref = RefLogProbs(ref_log_probs=part.ref_log_probs)
            metrics.append(actor.update(part, ref, Advantages(advantages=part.advantages)))
    return metrics


pool = hf.ResourcePool([4])
deployment = hf.Deployment(
    actor=hf.place(Actor, PolicyConfig(mini_batch=8), pool=pool, mesh=hf.Mesh(dp=4)),
    reference=hf.place(Reference, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=2, tp=2)),
    reward=hf.place(Reward, pool=pool),
)
dims = {B: 96, P: 64, R: 64}
