# mypy: disable-error-code="empty-body, arg-type, valid-type"
"""Functions for any lengths: type variables stand for dims, and columns are wired one by one."""

from typing import Literal, TypeVar

import hfdsl as hf
from hfdsl import Add, Dispatch, Mul, register
from tests.check.programs.vocabulary import B, P, Prompts, R, Reward, Rollout, Scores

b = TypeVar("b")
t = TypeVar("t")


class Weights(hf.Batch):
    weights: hf.f32[B, R]


class Doubled(hf.Batch):
    ids: hf.i64[Mul[B, Literal[2]], P]


class Policy(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, weights: hf.f32[B, R], ids: hf.i64[B, Add[R, P]], scores: Scores) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def note(self, ids: hf.i64[B, P], limit: int | None = None) -> None: ...


@hf.function(rows=hf.Whole)
def whiten(x: hf.f32[b, t]) -> hf.f32[b, t]: ...


@hf.function
def masked(x: hf.f32[b, t], mask: hf.bool_[b, t]) -> hf.f32[b, t]: ...


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reward: Reward) -> Scores:
    rollout = policy.generate(prompts)
    scores = reward.score(rollout)
    weights = Weights(weights=masked(whiten(rollout.log_probs), mask=rollout.response_mask))
    policy.update(weights.weights, rollout.ids, scores)
    policy.note(Doubled(ids=hf.repeat(prompts, 2).ids).ids, limit=5)
    return scores


pool = hf.ResourcePool([2])
deployment = hf.Deployment(policy=hf.place(Policy, pool=pool), reward=hf.place(Reward, pool=pool))
dims = {B: 6, P: 3, R: 5}
