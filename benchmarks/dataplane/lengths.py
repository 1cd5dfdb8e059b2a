"""Roles that take as long as their rows are: a rank sleeps for each of its tokens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, i64, register

if TYPE_CHECKING:
    from collections.abc import Sequence


class B(hf.Dim):
    """Responses."""


class R(hf.Dim):
    """Tokens of a response, at most."""


class Prompts(hf.Batch):
    length: i64[B]


class Rollout(hf.Batch):
    ids: i64[B, R]
    mask: bool_[B, R]


class LogProbs(hf.Batch):
    log_probs: f32[B, R]


class Values(hf.Batch):
    values: f32[B, R]


class CallResult(hf.Batch):
    tokens: i64[B]


class Role(hf.Worker):
    """What all roles share: how long a token takes, and how long responses may be."""

    def __init__(self, seconds: float, longest: int) -> None:
        self.seconds, self.longest = seconds, longest

    def napped(self, rollout: Rollout) -> torch.Tensor:
        """As long as the tokens of this rank take; a number a token."""
        time.sleep(self.seconds * int(rollout.mask.tensor.sum()))
        return rollout.ids.tensor * rollout.mask.tensor.float()


class Actor(Role):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        mask = torch.arange(self.longest) < prompts.length.tensor[:, None]
        return Rollout(ids=mask.long(), mask=mask)

    @register(Dispatch.DP_PROTO, balance="mask")
    def infer(self, rollout: Rollout) -> LogProbs:
        return LogProbs(log_probs=self.napped(rollout))

    @register(Dispatch.DP_PROTO, balance="mask")
    def update(self, rollout: Rollout, log_probs: LogProbs, values: Values) -> CallResult:
        return CallResult(
            tokens=(self.napped(rollout) + log_probs.log_probs.tensor + values.values.tensor).sum(1).long() // 3
        )


class Critic(Role):
    @register(Dispatch.DP_PROTO, balance="mask")
    def infer(self, rollout: Rollout) -> Values:
        return Values(values=self.napped(rollout))


@hf.dataflow
def ppo(prompts: Prompts, actor: Actor, critic: Critic) -> CallResult:
    """A rollout, two inferences that run at the same time, an update."""
    rollout = actor.generate(prompts)
    return actor.update(rollout, actor.infer(rollout), critic.infer(rollout))


def deployment(ranks: int, seconds: float, longest: int) -> hf.Deployment:
    """The two roles on pools of their own."""
    return hf.Deployment(
        actor=hf.place(Actor, seconds, longest, pool=hf.ResourcePool([ranks], use_gpu=False, name="actor")),
        critic=hf.place(Critic, seconds, longest, pool=hf.ResourcePool([ranks], use_gpu=False, name="critic")),
    )


def prompts(lengths: Sequence[int]) -> Prompts:
    """One prompt for every response, which will be so long."""
    return Prompts(length=torch.tensor(lengths))
