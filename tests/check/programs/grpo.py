# mypy: disable-error-code="empty-body"
"""GRPO: a group of responses for every prompt, compared within the group."""

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

GROUP = 8


@hf.function(rows=hf.Grouped(GROUP))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    scores = reward.score(rollout)
    ref = reference.log_probs(rollout)
    return actor.update(rollout, ref, group_advantages(scores, rollout))


train, score = hf.ResourcePool([4, 4]), hf.ResourcePool([2])
deployment = hf.Deployment(
    actor=hf.place(Actor, PolicyConfig(), pool=train, mesh=hf.Mesh(dp=4, tp=2)),
    reference=hf.place(Reference, PolicyConfig(), pool=train, mesh=hf.Mesh(dp=8)),
    reward=hf.place(Reward, pool=score, mesh=hf.Mesh(dp=2)),
)
dims = {B: 64, P: 512, R: 512}
