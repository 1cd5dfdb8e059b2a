"""Dims, records and roles that the programs of the corpus share; tiny models, so that a program runs in milliseconds.

``import torch`` stands in the bodies: a check never runs them, and stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, Execute, bool_, f32, i64, register

if TYPE_CHECKING:
    import torch


class B(hf.Dim):
    """Rows: one prompt, or one prompt with its response."""


class P(hf.Dim):
    """Prompt tokens."""


class R(hf.Dim):
    """Response tokens."""


T = Add[P, R]


class Prompts(hf.Batch):
    ids: i64[B, P]
    answer: hf.Obj[str, B]


class Sequences(hf.Batch):
    ids: i64[B, T]
    response_mask: bool_[B, R]


class Rollout(Sequences):
    log_probs: f32[B, R]


class RefLogProbs(hf.Batch):
    ref_log_probs: f32[B, R]


class Values(hf.Batch):
    values: f32[B, R]


class Scores(hf.Batch):
    reward: f32[B]


class Advantages(hf.Batch):
    advantages: f32[B, R]


class Estimates(Advantages):
    returns: f32[B, R]


class Scored(Rollout, Scores):
    """What a queue between sampling and training holds."""


class ActorMetrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class CriticMetrics(hf.Batch):
    value_loss: hf.Metric[float, Literal["mean"]]


@dataclass(frozen=True)
class PolicyConfig:
    response: int = 4
    mini_batch: int = 1
    learning_rate: float = 0.1


TOKENS = 8


class Table(hf.Worker):
    """A model that is one table: what it says after each token."""

    def __init__(self, config: PolicyConfig, width: int = TOKENS) -> None:
        import torch

        self.config = config
        self.table = torch.zeros(TOKENS, width)

    def said(self, ids: torch.Tensor) -> torch.Tensor:
        """What it says at the token before each response token, [rows, R, width]."""
        return self.table[ids[:, -self.config.response - 1 : -1]]

    def chosen(self, ids: torch.Tensor) -> torch.Tensor:
        """The log-probabilities of the response tokens, [rows, R]."""
        picked: Any = self.said(ids).log_softmax(-1).gather(-1, ids[:, -self.config.response :, None])
        return picked[..., 0]  # type: ignore[no-any-return]

    def move(self, step: torch.Tensor) -> None:
        """Add the mean of the ranks' additions."""
        self.table += self.config.learning_rate * self.axis("dp").all_reduce(step, "mean")


class Actor(Table):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        import torch

        ids = prompts.ids.tensor
        for draw in hf.current_call().uniforms(self.config.response).T:
            chances = self.table[ids[:, -1]].softmax(-1).cumsum(-1)
            token = (chances < draw[:, None]).sum(-1, keepdim=True).clamp(max=TOKENS - 1)
            ids = torch.cat([ids, token], dim=1)
        mask = torch.ones(len(ids), self.config.response, dtype=torch.bool)
        return Rollout(ids=ids, response_mask=mask, log_probs=self.chosen(ids))

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % mini_batch == 0")
    def update(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:
        import torch

        ids, weights = rollout.ids.tensor, advantages.advantages.tensor
        before, after = ids[:, -self.config.response - 1 : -1], ids[:, -self.config.response :]
        step = torch.zeros_like(self.table)
        step.index_put_((before.flatten(), after.flatten()), weights.flatten() / max(len(ids), 1), accumulate=True)
        self.move(step)
        return ActorMetrics(loss=float(-(self.chosen(ids) * weights).mean()))


class Learner(Actor):
    """A policy that learns from rows of a queue; ``ratio`` says by which column it divides."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def log_probs_now(self, sequences: Sequences) -> RefLogProbs:
        return RefLogProbs(ref_log_probs=self.chosen(sequences.ids.tensor))

    @register(Dispatch.THREE_D_PROTO)
    @hf.corrects("policy", lag=8)
    @hf.writes("policy", ratio="log_probs")
    def learn(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:
        return self.update(rollout, advantages)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def reinforce(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:
        return self.update(rollout, advantages)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:
        rows: list[list[float]] = self.table.tolist()
        return rows


class Engine(Actor):
    """What samples for a ``Learner``, with a copy of its weights."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def sample(self, prompts: Prompts) -> Rollout:
        return self.generate(prompts)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:
        import torch

        self.table = torch.tensor(weights)


class Reference(Table):
    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, sequences: Sequences) -> RefLogProbs:
        return RefLogProbs(ref_log_probs=self.chosen(sequences.ids.tensor))


class Critic(Table):
    @register(Dispatch.THREE_D_PROTO)
    def values(self, sequences: Sequences) -> Values:
        return Values(values=self.said(sequences.ids.tensor).mean(-1))

    @register(Dispatch.THREE_D_PROTO)
    def update(self, sequences: Sequences, estimates: Estimates) -> CriticMetrics:
        wrong = self.said(sequences.ids.tensor).mean(-1) - estimates.returns.tensor
        return CriticMetrics(value_loss=float((wrong**2).mean()))


class Reward(hf.Worker):
    """A verifier: the share of response tokens that are even."""

    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores:
        width = sequences.response_mask.tensor.shape[1]
        return Scores(reward=(sequences.ids.tensor[:, -width:] % 2 == 0).float().mean(1))


@hf.function
def gains(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.function(rows=hf.GroupedBy("group"))
def gains_over_group(scores: Scores, rollout: Rollout, *, group: int) -> Advantages:
    reward = scores.reward.tensor.view(-1, group)
    gained = (reward - reward.mean(1, keepdim=True)).flatten()
    return Advantages(advantages=gained[:, None] * rollout.response_mask.tensor)


def queue_places() -> hf.Deployment:
    """A learner on one pool, an engine and what scores on another."""
    train, serve, config = hf.ResourcePool([4], name="trainers"), hf.ResourcePool([2], name="engines"), PolicyConfig()
    return hf.Deployment(
        learner=hf.place(Learner, config, pool=train),
        engine=hf.place(Engine, config, pool=serve),
        reward=hf.place(Reward, pool=serve),
    )


def prompts_of(rows: int, length: int = 3) -> Callable[[], Iterator[Prompts]]:
    """A data set with one batch."""

    def batches() -> Iterator[Prompts]:
        import torch

        yield Prompts(ids=torch.arange(rows * length).view(rows, length) % TOKENS, answer=[str(i) for i in range(rows)])

    return batches
