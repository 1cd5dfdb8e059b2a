"""Weights that wait in copies for the calls of an engine, which says how much memory it had."""

from __future__ import annotations

import time
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim):
    """Rows."""


class Prompts(hf.Batch):
    number: f32[B]


class Samples(hf.Batch):
    weight: f32[B]
    peak: f32[B]


class Trained(hf.Batch):
    weight: hf.Metric[float, Literal["max"]]
    """Of the engine that made the samples."""

    peak: hf.Metric[float, Literal["max"]]
    """The most bytes that the engine had until then."""


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Engine(hf.Worker):
    """An engine that takes longer than an update, and keeps its own copy of what it loads."""

    def __init__(self, size: int, seconds: float) -> None:
        self.weights, self.seconds = torch.zeros(size, device=device()), seconds

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        """The weight that it has; the first calls wait until all that are to wait for them have been submitted."""
        time.sleep(self.seconds)
        rows = torch.ones(len(prompts))
        peak = torch.cuda.max_memory_allocated() if device() == "cuda" else 0
        return Samples(weight=rows * float(self.weights.mean()), peak=rows * peak)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Take new weights."""
        self.weights.copy_(weights["weight"])


class Actor(hf.Worker):
    """An actor whose weights all have the number of its updates, and which changes them in place."""

    def __init__(self, size: int) -> None:
        self.weights = torch.zeros(size, device=device())

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Samples) -> Trained:
        """An update."""
        self.weights.add_(1)
        return Trained(weight=float(batch.weight.tensor.max()), peak=float(batch.peak.tensor.max()))

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def export(self) -> dict[str, torch.Tensor]:
        """The weights."""
        return {"weight": self.weights}


@hf.dataflow
def lagged(prompts: Prompts, engine: Engine, actor: Actor, *, lag: int = 4) -> Trained:
    """Updates that are done long before the engine loads their weights."""
    trained = actor.update(hf.queue(engine.generate(prompts), lag=lag, late="wait"))
    hf.sync(actor, engine)
    return trained
