"""A program of two calls: one method has a deadline of its own, the other that of its role or of the launch."""

from __future__ import annotations

import time
from typing import Any, cast

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


@hf.function
def weighed(scores: Scores) -> Scores:
    time.sleep(1.0)  # until the reply of judge.score has left the process, which may be stopped now
    fail("weighed", cast(Any, hf.current_call()))  # which has a rank, too
    return Scores(score=scores.score.tensor * 2)


@hf.dataflow
def weighing(prompts: Prompts, judge: Judge) -> Scores:
    return weighed(judge.score(judge.answer(prompts)))


def shared(judge: float | None, other: float | None) -> hf.Deployment:
    """Two roles in the same processes."""
    pool = hf.ResourcePool([2], use_gpu=False)
    return hf.Deployment(
        judge=hf.place(Judge, pool=pool, deadline=judge), other=hf.place(Judge, pool=pool, deadline=other)
    )


@hf.dataflow
def weighing_both(prompts: Prompts, judge: Judge, other: Judge) -> Scores:
    return weighed(judge.score(other.answer(prompts)))
