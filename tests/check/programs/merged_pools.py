# mypy: disable-error-code="empty-body"
"""Merged pools: two roles on pools of their own, a third over both; a dataflow within a dataflow."""

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
    Reward,
    Rollout,
    Scores,
)


@hf.function(rows=hf.Whole)
def centered(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def experience(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[Rollout, Scores]:
    rollout = actor.generate(prompts)
    return rollout, reward.score(rollout)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout, scores = experience(prompts, actor, reward)
    return actor.update(rollout, reference.log_probs(rollout), centered(scores, rollout))


left, right = hf.ResourcePool([4]), hf.ResourcePool([4])
deployment = hf.Deployment(
    actor=hf.place(Actor, PolicyConfig(), pool=left.merge(right), mesh=hf.Mesh(dp=2, tp=4)),
    reference=hf.place(Reference, PolicyConfig(), pool=left, mesh=hf.Mesh(tp=4)),
    reward=hf.place(Reward, pool=right),
)
dims = {B: 16, P: 8, R: 8}
