"""Roles, records and functions for random programs: small, complete, and quick to run. R is three tokens."""

from __future__ import annotations

from typing import Literal, TypeVar

import hfdsl as hf
from hfdsl import Add, Dispatch, register
from hfdsl.rl.batches import B, P, R

__all__ = [
    "B", "P", "R", "SampleActor", "SampleAdvantages", "SampleJudge", "SampleMetrics", "SamplePrompts", "SampleRef",
    "SampleRollout", "SampleScores", "centre", "first", "weigh", "whiten",
]  # fmt: skip  # what a program may name, in three lines

b = TypeVar("b")
t = TypeVar("t")


class SamplePrompts(hf.Batch):
    """The input."""

    ids: hf.i64[B, P]


class SampleRollout(hf.Batch):
    """Prompts and responses."""

    ids: hf.i64[B, Add[P, R]]
    mask: hf.bool_[B, R]
    log_probs: hf.f32[B, R]


class SampleRef(hf.Batch):
    """Log-probs of another model."""

    ref: hf.f32[B, R]


class SampleScores(hf.Batch):
    """A number a row, and whether the row stays."""

    reward: hf.f32[B]
    keep: hf.bool_[B]


class SampleAdvantages(hf.Batch):
    """A number a token."""

    advantages: hf.f32[B, R]


class SampleMetrics(hf.Batch):
    """A number."""

    loss: hf.Metric[float, Literal["mean"]]


class SampleActor(hf.Worker):
    """Generates and learns, without a model."""

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: SamplePrompts) -> SampleRollout:
        """Generate three tokens from those of the prompt."""
        import torch

        ids = torch.cat([prompts.ids.tensor, prompts.ids.tensor.sum(1, keepdim=True) + torch.arange(3)], 1)
        return SampleRollout(ids=ids, mask=ids[:, -3:] % 2 == 0, log_probs=-ids[:, -3:].float())

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: SampleRollout) -> SampleRef:
        """Double the rollout's log-probs."""
        return SampleRef(ref=rollout.log_probs.tensor * 2)

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: SampleRollout, ref: SampleRef, advantages: SampleAdvantages) -> SampleMetrics:
        """A loss of all rows."""
        return SampleMetrics(loss=float((ref.ref.tensor * advantages.advantages.tensor).sum()))


class SampleJudge(hf.Worker):
    """Scores responses, on a pool of its own."""

    @register(Dispatch.DP_PROTO)
    def score(self, rollout: SampleRollout, scale: float = 1.0) -> SampleScores:
        """The sum of the log-probs."""
        import torch

        reward = rollout.log_probs.tensor.sum(1) * scale
        return SampleScores(reward=reward, keep=torch.ones(len(reward), dtype=torch.bool))

    @register(Dispatch.DP_PROTO)
    def look(self, ids: hf.i64[B, Add[P, R]], mask: hf.bool_[B, R]) -> SampleScores:
        """The length of the response; it takes two columns instead of a record."""
        import torch

        reward = mask.tensor.sum(1).float()
        return SampleScores(reward=reward, keep=torch.ones(len(reward), dtype=torch.bool))

    @register(Dispatch.ONE_TO_ALL)
    def opinions(self, rollout: SampleRollout) -> SampleScores:
        """Every rank's scores of all rows."""
        reward = rollout.log_probs.tensor.sum(1)
        return SampleScores(reward=reward, keep=reward < 0)


@hf.function
def weigh(scores: SampleScores, ref: SampleRef) -> SampleAdvantages:
    """Row by row."""
    return SampleAdvantages(advantages=scores.reward.tensor[:, None] - ref.ref.tensor)


@hf.function(rows=hf.Grouped(2))
def centre(advantages: SampleAdvantages) -> SampleAdvantages:
    """In pairs."""
    pairs = advantages.advantages.tensor.unflatten(0, (-1, 2))
    return SampleAdvantages(advantages=(pairs - pairs.mean(1, keepdim=True)).flatten(0, 1))


@hf.function(rows=hf.Whole)
def whiten(x: hf.f32[b, t]) -> hf.f32[b, t]:
    """All rows at once, of any dims."""
    return hf.f32(x.tensor - x.tensor.mean())


@hf.function
def first(scores: hf.PerRank[SampleScores]) -> SampleScores:
    """The value of rank 0."""
    return scores[0]
