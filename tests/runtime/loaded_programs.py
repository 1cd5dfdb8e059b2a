"""An engine that loads the actor's weight and has no ``state()``, in programs that sync first or last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f64, register
from tests.runtime.dying_programs import die


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f64[B]


class Weights(hf.Batch):
    weight: hf.Metric[float, Literal["max"]]


class Actor(hf.Worker):
    def __init__(self) -> None:
        self.weight = 1.0

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=2)
    def update(self, rows: Rows) -> Rows:
        self.weight += 0.5 * float(self.axis("dp").all_reduce(rows.x.tensor.sum()))
        return rows

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        return Weights(weight=self.weight)

    def state(self) -> dict[str, float]:
        return {"weight": self.weight}

    def load_state(self, state: Mapping[str, float]) -> None:
        self.weight = state["weight"]


class Engine(hf.Worker):
    def __init__(self) -> None:
        self.weight = 1.0

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy", staleness=1)
    def sample(self, rows: Rows) -> Rows:
        die("engine.sample", self)
        return Rows(x=torch.sin(rows.x.tensor * self.weight))

    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows:
        """Reads the weight, and does not say so."""
        return Rows(x=rows.x.tensor * self.weight)

    @register(Dispatch.DP_PROTO)
    @hf.reads("tokenizer")
    def tokenize(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor + 1)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None:
        self.weight = weights.weight.value


@hf.dataflow
def sync_last(rows: Rows, actor: Actor, engine: Engine) -> Rows:
    result = actor.update(engine.sample(rows))
    hf.sync(actor, engine)
    return result


@hf.dataflow
def sync_first(rows: Rows, actor: Actor, engine: Engine) -> Rows:
    hf.sync(actor, engine)
    return actor.update(engine.sample(rows))


@hf.dataflow
def queued(rows: Rows, actor: Actor, engine: Engine) -> Rows:
    result = actor.update(hf.queue(engine.sample(rows), lag=2, late="wait"))
    hf.sync(actor, engine)
    return result


@hf.dataflow
def look(rows: Rows, actor: Actor, engine: Engine) -> Rows:
    """What the engine samples with what it has."""
    return engine.sample(rows)


def deployment() -> hf.Deployment:
    """Actor and engine in processes of their own, so that one can be lost alone."""
    return hf.Deployment(
        actor=hf.place(Actor, pool=hf.ResourcePool([1], use_gpu=False)),
        engine=hf.place(Engine, pool=hf.ResourcePool([1], use_gpu=False)),
    )


def program(calls: tuple[str, ...]) -> Any:
    """A dataflow with these calls of the engine, in this order, "sync" among them."""

    @hf.dataflow
    def drawn(rows: Rows, actor: Actor, engine: Engine) -> Rows:
        value = rows
        for call in calls:
            if call == "sync":
                hf.sync(actor, engine)
            else:
                value = getattr(engine, call)(value)
        return actor.update(value)

    return drawn


def rows(step: int) -> Rows:
    return Rows(x=torch.arange(1.0, 5.0, dtype=torch.float64) + step)
