"""Programs for the Ray backend: a small GRPO step with real gradients, and roles that go wrong in every way."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register

GROUP = 2


class B(hf.Dim):
    """Rows."""


class P(hf.Dim):
    """Prompt tokens."""


class R(hf.Dim):
    """Response tokens."""


class Prompts(hf.Batch):
    ids: i64[B, P]
    name: hf.Obj[str, B]


class Rollout(hf.Batch):
    ids: i64[B, R]
    log_probs: f32[B, R]


class Scores(hf.Batch):
    reward: f32[B]


class Weighted(Rollout):
    reward: f32[B]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    weight: hf.Metric[float, Literal["first"]]


@dataclass(frozen=True)
class Config:
    width: int = 4


class Actor(hf.Worker):
    """A linear policy whose update all-reduces gradients over dp."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(1)
        self.weight = torch.nn.Parameter(torch.randn(config.width, dtype=torch.float64))

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        draws = hf.current_call().uniforms(3)
        ids = (draws * 100).long() + prompts.ids.tensor.sum(1, keepdim=True)
        return Rollout(ids=ids, log_probs=-draws)

    @register(Dispatch.THREE_D_PROTO)
    def update(self, weighted: Weighted) -> Metrics:
        x = weighted.log_probs.tensor.double()
        loss = ((x @ self.weight[:3] - weighted.reward.tensor.double()) ** 2).mean()
        self.weight.grad = None
        loss.backward()
        assert self.weight.grad is not None
        gradient = self.axis("dp").all_reduce(self.weight.grad, "mean")
        with torch.no_grad():
            self.weight -= 0.1 * gradient
        return Metrics(loss=float(loss.detach()), weight=float(self.weight.detach().sum()))

    @register(Dispatch.ONE_TO_ALL)
    def weights(self) -> list[float]:
        return [float(weight) for weight in self.weight.detach()]

    @register(Dispatch.ONE_TO_ALL)
    def noise(self) -> list[float]:
        """Global and per-rank random numbers, and the process that they come from."""
        seeded = torch.rand(2, generator=hf.current_call().generator())
        return [*torch.rand(2).tolist(), *seeded.tolist()]

    @register(Dispatch.ONE_TO_ALL)
    def process(self) -> int:
        return os.getpid()


class Reward(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores:
        return Scores(reward=rollout.ids.tensor.float().mean(1))

    @register(Dispatch.ONE_TO_ALL)
    def process(self) -> int:
        return os.getpid()


class Holder(Reward):
    """A reward that is given things of all kinds."""

    def __init__(self, tools: dict[str, object]) -> None:
        self.tools = tools


@hf.function(rows=hf.Grouped(GROUP))
def centre(scores: Scores) -> Scores:
    groups = scores.reward.tensor.view(-1, GROUP)
    return Scores(reward=(groups - groups.mean(1, keepdim=True)).flatten())


@hf.dataflow
def train(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[Rollout, Metrics, hf.PerRank[list[float]]]:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    weighted = hf.merge(Weighted, rollout, centre(reward.score(rollout)))
    updates = [actor.update(part) for part in hf.minibatches(weighted, 2)]
    return rollout, updates[-1], actor.weights()


@hf.dataflow
def noises(prompts: Prompts, actor: Actor, reward: Reward) -> hf.PerRank[list[float]]:
    reward.score(actor.generate(prompts))
    return actor.noise()


@hf.dataflow
def processes(actor: Actor, reward: Reward) -> tuple[hf.PerRank[int], hf.PerRank[int]]:
    return actor.process(), reward.process()


def swap_halves(group: Any, rollout: Rollout) -> tuple[tuple[list[Rollout], ...], dict[str, Any]]:
    """A dispatch function: ranks get their parts in reverse order."""
    size = len(rollout) // group.world_size
    parts = [rollout[i * size : (i + 1) * size] for i in range(group.world_size)]
    return (parts[::-1],), {}


def join_reversed(group: Any, outputs: list[Scores]) -> Scores:
    """The collect function that undoes it."""
    return Scores(reward=torch.cat([scores.reward.tensor for scores in outputs[::-1]]))


class Custom(hf.Worker):
    @register({"dispatch_fn": swap_halves, "collect_fn": join_reversed})
    def score(self, rollout: Rollout) -> Scores:
        return Scores(reward=rollout.ids.tensor.float().mean(1))


@hf.dataflow
def custom(prompts: Prompts, actor: Actor, reward: Custom) -> Scores:
    return reward.score(actor.generate(prompts))


class Faulty(hf.Worker):
    """Goes wrong as its ``fault`` says."""

    def __init__(self, fault: str, rank: int = 1) -> None:
        self.fault, self.at = fault, rank
        if fault == "constructor" and self.rank == rank:
            raise ValueError("no weights here")

    @register(Dispatch.THREE_D_PROTO)
    def score(self, rollout: Rollout) -> Scores:
        if self.rank == self.at:
            match self.fault:
                case "raise":
                    raise ValueError("bad rollout")
                case "die":
                    os._exit(1)
                case "rows":
                    return Scores(reward=rollout.ids.tensor.float().mean(1)[:-1])
                case "dtype":
                    return Scores(reward=rollout.ids.tensor)
                case "record":
                    return rollout  # type: ignore[return-value]  # the fault
        if self.fault in ("raise", "dtype", "die"):
            self.axis("dp").barrier()  # the others wait for the rank that is gone
        if self.fault == "slow":
            time.sleep(30)
        return Scores(reward=rollout.ids.tensor.float().mean(1))


@hf.dataflow
def fails(prompts: Prompts, actor: Actor, reward: Faulty) -> Scores:
    return reward.score(actor.generate(prompts))


def batch(rows: int) -> Prompts:
    return Prompts(ids=torch.arange(rows * 2).view(rows, 2), name=[f"row {i}" for i in range(rows)])


class Numbers(hf.Batch):
    text: hf.Obj[str, B]


def numbers(*values: int) -> Numbers:
    return Numbers(text=[str(value) for value in values])


class Sieve(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def even(self, numbers: Numbers) -> hf.bool_[B]:
        return hf.bool_(torch.tensor([int(text) % 2 == 0 for text in numbers.text.objects]))

    @register(Dispatch.DP_PROTO, pad="cycle")
    def marked(self, numbers: Numbers) -> Numbers:
        return Numbers(text=[f"{text}'" for text in numbers.text.objects])


@hf.dataflow
def sift(numbers: Numbers, judge: Sieve, other: Sieve) -> tuple[Numbers, Numbers]:
    """Roles on different meshes read what is left; the one in its own processes gets it over the wire."""
    even = hf.filter(numbers, judge.even(numbers))
    return other.marked(even), hf.fill(even, 4)
