"""Programs whose roles return columns of any width."""

from __future__ import annotations

from typing import Any

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class H(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B, P]


class Rollout(hf.Batch):
    ids: i64[B, hf.Add[P, R]]
    log_probs: f32[B, R]


class Thoughts(hf.Batch):
    tokens: i64[B, hf.Ragged[R]]


class Hidden(hf.Batch):
    hidden: f32[B, R, H]


def to_all(group: Any, prompts: Prompts) -> Any:
    return ([prompts] * group.world_size,), {}


def of_first(group: Any, outputs: Any) -> Any:
    return outputs[0]


class Actor(hf.Worker):
    def __init__(self, ids: int = 9, log_probs: int = 6, longest: int = 6, hidden: int = 4) -> None:
        self.sizes = ids, log_probs, longest, hidden

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        ids, log_probs, _, _ = self.sizes
        rows = len(prompts)
        return Rollout(ids=torch.zeros(rows, ids, dtype=torch.int64), log_probs=torch.zeros(rows, log_probs))

    @register(Dispatch.DP_PROTO)
    def think(self, prompts: Prompts) -> Thoughts:
        lengths = [1] * (len(prompts) - 1) + [self.sizes[2]]
        return Thoughts(tokens=i64([torch.zeros(length, dtype=torch.int64) for length in lengths]))

    @register(Dispatch.DP_PROTO)
    def embed(self, prompts: Prompts) -> Hidden:
        return Hidden(hidden=torch.zeros(len(prompts), 6, self.sizes[3]))

    @register(dispatch_mode={"dispatch_fn": to_all, "collect_fn": of_first})
    def generate_by_first(self, prompts: Prompts) -> Rollout:
        return self.generate(prompts)

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> f32[B, R]:
        return f32(torch.zeros(len(prompts), self.sizes[1]))


@hf.dataflow
def generating(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


@hf.dataflow
def generating_by_first(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate_by_first(prompts)


@hf.dataflow
def thinking(prompts: Prompts, actor: Actor) -> Thoughts:
    return actor.think(prompts)


@hf.dataflow
def embedding(prompts: Prompts, actor: Actor) -> Hidden:
    return actor.embed(prompts)


@hf.dataflow
def scoring(prompts: Prompts, actor: Actor) -> f32[B, R]:
    return actor.score(prompts)
