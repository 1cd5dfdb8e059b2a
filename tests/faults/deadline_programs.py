"""A program of two calls: one method has a deadline of its own, the other that of its role or of the launch."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.faults.failing_programs import Prompts, Role, Rollout, Scores, fail


class Judge(Role):
    @register(Dispatch.DP_PROTO)
    def answer(self, prompts: Prompts) -> Rollout:
        fail("judge.answer", self)
        return Rollout(y=prompts.x.tensor)

    @register(Dispatch.DP_PROTO, deadline=5.0)
    def score(self, rollout: Rollout) -> Scores:
        fail("judge.score", self)
        return Scores(score=rollout.y.tensor + self.total(rollout.y.tensor))


@hf.dataflow
def judging(prompts: Prompts, judge: Judge) -> Scores:
    return judge.score(judge.answer(prompts))


def places(deadline: float | None = None) -> hf.Deployment:
    return hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([2], use_gpu=False), deadline=deadline))
