"""Roles, records and functions for programs that are made at random: small, whole, and quick to run."""

from __future__ import annotations

from typing import Literal, TypeVar

import hfdsl as hf
from hfdsl import Add, Dispatch, register

__all__ = [
    "Actor", "Advantages", "B", "Judge", "Metrics", "P", "Prompts", "R", "Ref", "Rollout", "Scores", "centre", "first",
    "weigh", "whiten",
]  # fmt: skip  # what a program may name, in two lines

b = TypeVar("b")
t = TypeVar("t")


class B(hf.Dim):
    """Rows."""


class P(hf.Dim):
    """Tokens of a prompt."""


class R(hf.Dim):
    """Tokens of a response: three."""


class Prompts(hf.Batch):
    """What goes in."""

    ids: hf.i64[B, P]


class Rollout(hf.Batch):
    """Prompts and responses."""

    ids: hf.i64[B, Add[P, R]]
    mask: hf.bool_[B, R]
    log_probs: hf.f32[B, R]


class Ref(hf.Batch):
    """Log-probs of another model."""

    ref: hf.f32[B, R]


class Scores(hf.Batch):
    """A number a row, and whether the row stays."""

    reward: hf.f32[B]
    keep: hf.bool_[B]


class Advantages(hf.Batch):
    """A number a token."""

    advantages: hf.f32[B, R]


class Metrics(hf.Batch):
    """A number."""

    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    """Generates and learns, without a model."""

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        """Three tokens, which follow from those of the prompt."""
        import torch

        ids = torch.cat([prompts.ids.tensor, prompts.ids.tensor.sum(1, keepdim=True) + torch.arange(3)], 1)
        return Rollout(ids=ids, mask=ids[:, -3:] % 2 == 0, log_probs=-ids[:, -3:].float())

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> Ref:
        """Twice those of the rollout."""
        return Ref(ref=rollout.log_probs.tensor * 2)

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, ref: Ref, advantages: Advantages) -> Metrics:
        """A loss of all rows."""
        return Metrics(loss=float((ref.ref.tensor * advantages.advantages.tensor).sum()))


class Judge(hf.Worker):
    """Scores responses, on a pool of its own."""

    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout, scale: float = 1.0) -> Scores:
        """The sum of the log-probs."""
        import torch

        reward = rollout.log_probs.tensor.sum(1) * scale
        return Scores(reward=reward, keep=torch.ones(len(reward), dtype=torch.bool))

    @register(Dispatch.DP_PROTO)
    def look(self, ids: hf.i64[B, Add[P, R]], mask: hf.bool_[B, R]) -> Scores:
        """The length of the response; it takes two columns instead of a record."""
        import torch

        reward = mask.tensor.sum(1).float()
        return Scores(reward=reward, keep=torch.ones(len(reward), dtype=torch.bool))

    @register(Dispatch.ONE_TO_ALL)
    def opinions(self, rollout: Rollout) -> Scores:
        """Every rank's scores of all rows."""
        reward = rollout.log_probs.tensor.sum(1)
        return Scores(reward=reward, keep=reward < 0)


@hf.function
def weigh(scores: Scores, ref: Ref) -> Advantages:
    """Row by row."""
    return Advantages(advantages=scores.reward.tensor[:, None] - ref.ref.tensor)


@hf.function(rows=hf.Grouped(2))
def centre(advantages: Advantages) -> Advantages:
    """In pairs."""
    pairs = advantages.advantages.tensor.unflatten(0, (-1, 2))
    return Advantages(advantages=(pairs - pairs.mean(1, keepdim=True)).flatten(0, 1))


@hf.function(rows=hf.Whole)
def whiten(x: hf.f32[b, t]) -> hf.f32[b, t]:
    """All rows at once, of any dims."""
    return hf.f32(x.tensor - x.tensor.mean())


@hf.function
def first(scores: hf.PerRank[Scores]) -> Scores:
    """What rank 0 says."""
    return scores[0]
