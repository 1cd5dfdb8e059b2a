"""A program whose bodies sleep: an engine of some ranks, a queue, and an actor; with a queue or without."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.durations import DrawnSeconds


class B(hf.Dim):
    """Rows of a batch."""


class Rows(hf.Batch):
    x: f32[B]


class Weights(hf.Batch):
    number: hf.Metric[int, Literal["max"]]


class Engine(hf.Worker):
    """Generation takes as long as ``hfdsl.runtime.queues.durations`` draws for this step and rank."""

    def __init__(self, seconds: DrawnSeconds) -> None:
        self.seconds = seconds

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows:
        time.sleep(self.seconds.of(0, "engine.generate", hf.current_call().step, self.rank))
        return rows

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None:
        """Take the weights."""


class Actor(hf.Worker):
    def __init__(self, seconds: DrawnSeconds) -> None:
        self.seconds, self.updates = seconds, 0

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=16)
    def update(self, rows: Rows) -> Rows:
        time.sleep(self.seconds.of(0, "actor.update", hf.current_call().step))
        self.updates += 1
        return rows

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        return Weights(number=self.updates)


@hf.dataflow
def flow(rows: Rows, engine: Engine, actor: Actor, *, lag: int | None = None, late: Late | None = None) -> Rows:
    """Generate, train, and send the weights."""
    generated = engine.generate(rows)
    trained = actor.update(hf.queue(generated, lag=lag, late=late))
    hf.sync(actor, engine)
    return trained


def compiled(lag: int | None, seconds: Mapping[str, DrawnSeconds], ranks: int = 2, late: Late = "wait") -> CompiledPlan:
    """The plan, with an engine of so many ranks beside an actor of one."""
    pools = {
        name: hf.ResourcePool([count], use_gpu=False, name=name) for name, count in (("engine", ranks), ("actor", 1))
    }
    place = hf.Deployment(
        engine=hf.place(Engine, seconds["engine.generate"], pool=pools["engine"]),
        actor=hf.place(Actor, seconds["actor.update"], pool=pools["actor"]),
    )
    return flow.given(lag=lag, late=None if lag is None else late).compile(place, dims={B: 2 * ranks})


def batch(ranks: int = 2) -> Rows:
    """A batch."""
    return Rows(x=torch.zeros(2 * ranks))
