"""A trainer and an engine whose copy of the weights is spoiled after some loads."""

from __future__ import annotations

from typing import Any

import torch

import hfdsl as hf
from tests.runtime.dying_programs import die


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Trainer(hf.Worker):
    def __init__(self) -> None:
        self.table = {"weight": torch.arange(6.0).view(3, 2), "bias": torch.ones(3)}

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.table.items()}

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Rows:
        self.table["bias"] += 1
        return rows

    def state(self) -> dict[str, Any]:
        return self.table

    def load_state(self, state: dict[str, Any]) -> None:
        self.table = state


class Engine(hf.Worker):
    def __init__(self, spoils: int = -1) -> None:
        self.spoils, self.loads = spoils, 0
        self.table: dict[str, Any] = {}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.table = {name: value.clone() for name, value in weights.items()}
        self.loads += 1
        if self.loads == self.spoils and self.rank == 1:
            self.table["weight"] = self.table["weight"].flip(0)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def sample(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor + self.table["bias"].sum())

    def state(self) -> dict[str, Any]:
        return self.table

    def load_state(self, state: dict[str, Any]) -> None:
        self.table = state


class Relay(Engine):
    """Sends on what it has loaded."""

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return dict(self.table)


class Dying(Engine):
    """Dies as it samples, where a file says so."""

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def sample(self, rows: Rows) -> Rows:
        die("engine.sample", self)
        return super().sample(rows)


class Renaming(Engine):
    """Has names of its own for what it loads."""

    def state(self) -> dict[str, Any]:
        return {f"model.{name}": value for name, value in self.table.items()}


class Closed(Engine):
    """Gives nothing, in spite of its method."""

    def held_weights(self, state: str) -> Any:
        return None


class Student(Engine):
    """Learns from the weights that it has loaded."""

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Rows:
        self.table = {name: value + 1 for name, value in self.table.items()}
        return rows


@hf.dataflow
def relayed(actor: Trainer, relay: Relay, engine: Engine) -> None:
    hf.sync(actor, relay)
    hf.sync(relay, engine)


@hf.dataflow
def renewed(rows: Rows, actor: Trainer, relay: Relay) -> Rows:
    learned = actor.update(rows)
    hf.sync(actor, relay)
    return relay.sample(learned)


@hf.dataflow
def taught(rows: Rows, actor: Trainer, engine: Student) -> Rows:
    hf.sync(actor, engine)
    return engine.update(engine.sample(rows))


@hf.dataflow
def taught_again(rows: Rows, actor: Trainer, engine: Student) -> Rows:
    hf.sync(actor, engine)
    learned = engine.update(engine.sample(rows))
    hf.sync(actor, engine)
    return engine.sample(learned)


@hf.dataflow
def learned(rows: Rows, actor: Trainer, engine: Engine) -> Rows:
    hf.sync(actor, engine)
    return actor.update(engine.sample(rows))


@hf.dataflow
def synced(actor: Trainer, engine: Engine) -> None:
    hf.sync(actor, engine)


@hf.dataflow
def turns(rows: Rows, actor: Trainer, opponent: Trainer, engine: Engine) -> Rows:
    """The opponent learns twice as much, and then sends its weights."""
    hf.sync(actor, engine)
    played = engine.sample(rows)
    hf.sync(opponent, engine)
    opponent.update(opponent.update(engine.sample(played)))
    return actor.update(played)
