# mypy: disable-error-code="empty-body"
"""RLOO: the mean of the other responses of a group is the baseline; the group stays together in the role, too."""

import hfdsl as hf
from hfdsl import Dispatch, register
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
    Rollout,
    Scores,
)

K = 4


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(K))
    def grade(self, rollout: Rollout) -> Scores: ...


@hf.function(rows=hf.Grouped(K))
def leave_one_out(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, judge: Judge) -> ActorMetrics:
    rollout = actor.generate(hf.repeat(prompts, K))
    return actor.update(
        rollout=rollout,
        advantages=leave_one_out(judge.grade(rollout), rollout),
        ref=reference.log_probs(rollout),
    )


pool = hf.ResourcePool([8, 8])
deployment = hf.Deployment(
    actor=hf.place(Actor, PolicyConfig(mini_batch=64), pool=pool, mesh=hf.Mesh(pp=2, dp=4, tp=2)),
    reference=hf.place(Reference, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=2, tp=8)),
    judge=hf.place(Judge, pool=pool),
)
dims = {B: 48, P: 512, R: 2048}
