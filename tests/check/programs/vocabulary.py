# mypy: disable-error-code="empty-body"
"""Dims, records and roles that the programs beside this file share. Bodies are left out: a check never runs them."""

from dataclasses import dataclass
from typing import Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, register


class B(hf.Dim):
    """Rows of a batch."""


class P(hf.Dim):
    """Prompt tokens."""


class R(hf.Dim):
    """Response tokens."""


T = Add[P, R]


class Prompts(hf.Batch):
    ids: hf.i64[B, P]
    mask: hf.bool_[B, P]
    answer: hf.Obj[str, B]


class Rollout(hf.Batch):
    ids: hf.i64[B, T]
    response_mask: hf.bool_[B, R]
    log_probs: hf.f32[B, R]


class Scores(hf.Batch):
    reward: hf.f32[B]


class RefLogProbs(hf.Batch):
    ref_log_probs: hf.f32[B, R]


class Values(hf.Batch):
    values: hf.f32[B, R]


class Advantages(hf.Batch):
    advantages: hf.f32[B, R]


class Estimates(Advantages):
    returns: hf.f32[B, R]


class ActorMetrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class CriticMetrics(hf.Batch):
    value_loss: hf.Metric[float, Literal["mean"]]


@dataclass(frozen=True)
class PolicyConfig:
    model: str = "tiny"
    mini_batch: int = 16


class Actor(hf.Worker):
    def __init__(self, config: PolicyConfig) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % mini_batch == 0")
    def update(self, rollout: Rollout, ref: RefLogProbs, advantages: Advantages) -> ActorMetrics: ...


class Reference(hf.Worker):
    def __init__(self, config: PolicyConfig) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> RefLogProbs: ...


class Reward(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores: ...


class Critic(hf.Worker):
    def __init__(self, config: PolicyConfig) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def values(self, rollout: Rollout) -> Values: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, values: Values, estimates: Estimates) -> CriticMetrics: ...
