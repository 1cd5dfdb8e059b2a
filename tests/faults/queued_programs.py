"""A program with a queue, whose calls fail as a file says: an engine generates, a judge scores, an actor trains."""

from __future__ import annotations

from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.queueing import Late
from tests.faults.failing_programs import Metrics, Prompts, Role, Rollout, Scores, fail

QUEUED_NODES = ("engine.generate", "judge.score", "actor.update", "actor.weights", "engine.load")
"""In program order; rank 0 alone exports weights."""


class Weights(hf.Batch):
    weight: hf.Metric[float, Literal["max"]]


class Engine(Role):
    def __init__(self) -> None:
        self.weight = torch.ones((), dtype=torch.float64)

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout:
        fail("engine.generate", self)
        x = prompts.x.tensor
        return Rollout(y=(x * self.weight).to(torch.float32) + torch.rand(len(prompts)) + self.total(x))

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None:
        fail("engine.load", self)
        self.weight = torch.tensor(weights.weight.value, dtype=torch.float64)

    def state(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.weight = state["weight"]


class Judge(Role):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores:
        fail("judge.score", self)
        return Scores(score=rollout.y.tensor - self.total(rollout.y.tensor))


class Actor(Role):
    def __init__(self) -> None:
        self.weight = torch.ones((), dtype=torch.float64)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, scores: Scores) -> Metrics:
        fail("actor.update", self)
        loss = self.total(scores.score.tensor)
        self.weight = self.weight - 1e-3 * loss
        return Metrics(loss=float(self.weight))

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        fail("actor.weights", self)
        return Weights(weight=float(self.weight))

    def state(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.weight = state["weight"]


@hf.dataflow
def queued(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, late: Late = "wait") -> Metrics:
    scores = hf.queue(judge.score(engine.generate(prompts)), lag=2, late=late)
    metrics = actor.update(scores)
    hf.sync(actor, engine)
    return metrics


STREAM_STEPS = 6


def stream_prompts(first: int = 0, steps: int = STREAM_STEPS) -> list[Prompts]:
    """The batches of a stream from a step on."""
    return [Prompts(x=torch.arange(4.0) + step) for step in range(first, steps)]


def queued_deployment(*, split: bool = True) -> hf.Deployment:
    """The actor has processes of its own, so that stages run beside each other; or all roles share two processes."""
    sampling = hf.ResourcePool([2], use_gpu=False)
    training = hf.ResourcePool([2], use_gpu=False) if split else sampling
    return hf.Deployment(
        engine=hf.place(Engine, pool=sampling),
        judge=hf.place(Judge, pool=sampling),
        actor=hf.place(Actor, pool=training),
    )
