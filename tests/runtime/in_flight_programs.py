"""A program whose engine takes weights between tokens: every token says under which version it was made."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f64, i64, register
from hfdsl.protocols.queueing import Late

TOKENS = 6
"""The tokens of a row."""


class B(hf.Dim):
    """Rows: one prompt."""


class R(hf.Dim):
    """Tokens of a row."""


class Prompts(hf.Batch):
    number: i64[B]


class Samples(hf.Batch):
    number: i64[B]
    tokens: f64[B, R]
    versions: i64[B, R]


class Trained(hf.Batch):
    number: i64[B]
    tokens: f64[B, R]
    versions: i64[B, R]
    from_version: i64[B]
    update: i64[B]


class Weights(hf.Batch):
    weight: hf.Metric[float, Literal["max"]]
    version: hf.Metric[int, Literal["max"]]


def next_token(before: float, weight: float, noise: float) -> float:
    """The token after another one, under these weights."""
    return 0.5 * before + weight * noise


class Engine(hf.Worker):
    """An engine that takes weights between tokens.

    So many calls may be in progress ``at_once``; if they ``meet``, as many of the first ones begin together.
    """

    @staticmethod
    def concurrent_calls(
        tokens: int = TOKENS, pause: float = 0.0, at_once: int = 1, meet: bool = False
    ) -> dict[str, int]:
        """How many calls may be in progress."""
        return {"generate": at_once}

    def __init__(self, tokens: int = TOKENS, pause: float = 0.0, at_once: int = 1, meet: bool = False) -> None:
        self.count, self.pause, self.weight, self.version = tokens, pause, 1.0, 0
        self.meeting, self.first_calls = threading.Barrier(at_once), at_once if meet else 0

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        """Tokens that depend on those before and on the weights."""
        call, rows = hf.current_call(), len(prompts)
        if call.step < self.first_calls:
            self.meeting.wait(30)
        noise = call.uniforms(self.count).double()
        tokens, versions = torch.zeros(rows, self.count, dtype=torch.float64), torch.zeros(rows, self.count).long()
        before = prompts.number.tensor.double()
        for t in range(self.count):
            versions[:, t] = call.take_weights(t, of=self.count)
            if versions[0, t] != self.version:
                raise ValueError(f"token {t} is of version {self.version}, not {int(versions[0, t])}")
            weight = self.weight
            time.sleep(self.pause)
            if weight != self.weight:
                raise ValueError(f"the weights of token {t} have changed")
            before = tokens[:, t] = 0.5 * before + weight * noise[:, t]
        return Samples(number=prompts.number.tensor, tokens=tokens, versions=versions)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", during="generate")
    def load(self, weights: Weights) -> None:
        """Take new weights."""
        self.weight, self.version = float(weights.weight.value), int(weights.version.value)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return {"weight": torch.tensor(self.weight, dtype=torch.float64), "version": torch.tensor(self.version)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """What it held."""
        self.weight, self.version = float(state["weight"]), int(state["version"])


class Actor(hf.Worker):
    def __init__(self, pause: float = 0.0) -> None:
        self.pause, self.weight, self.updates = pause, 1.0, 0

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Samples) -> Trained:
        """An update by all tokens, and what it was made of."""
        time.sleep(self.pause)
        call, rows = hf.current_call(), len(batch)
        row_versions = [call.rows_version] * rows if call.row_versions is None else list(call.row_versions)
        self.weight = 0.9 * self.weight + 0.1 * float(batch.tokens.tensor.mean())
        self.updates += 1
        return Trained(
            number=batch.number.tensor,
            tokens=batch.tokens.tensor,
            versions=batch.versions.tensor,
            from_version=torch.tensor(row_versions),
            update=torch.full((rows,), self.updates - 1),
        )

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        """The weights for engines."""
        return Weights(weight=self.weight, version=self.updates)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return {"weight": torch.tensor(self.weight, dtype=torch.float64), "updates": torch.tensor(self.updates)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """What it held."""
        self.weight, self.updates = float(state["weight"]), int(state["updates"])


class TensorEngine(Engine):
    """An engine whose weights arrive as tensors."""

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", during="generate")
    def load(self, weights: dict[str, torch.Tensor]) -> None:  # type: ignore[override]  # of other actors
        """Take new weights."""
        self.weight, self.version = float(weights["weight"]), int(weights["version"])


class TensorActor(Actor):
    """An actor that exports the memory which its next update writes."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.tensors = {"weight": torch.ones((), dtype=torch.float64), "version": torch.zeros((), dtype=torch.long)}

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, torch.Tensor]:  # type: ignore[override]  # for other engines
        """The weights for engines."""
        self.tensors["weight"].fill_(self.weight)
        self.tensors["version"].fill_(self.updates)
        return self.tensors


class DyingActor(TensorActor):
    """An actor whose process ends in an update, unless there is the file that it leaves then."""

    def __init__(self, pause: float, dies_in: int, file: str) -> None:
        super().__init__(pause)
        self.dies_in, self.file = dies_in, Path(file)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Samples) -> Trained:
        """An update, or the end."""
        if hf.current_call().step == self.dies_in and not self.file.exists():
            self.file.touch()
            os._exit(1)
        return super().update(batch)


@hf.dataflow
def in_flight(
    prompts: Prompts, engine: Engine, actor: Actor, *, lag: int = 2, late: Late = "wait", rows: int | None = None
) -> Trained:
    """Weights go to the engine while it generates."""
    batch = hf.queue(engine.generate(prompts), rows=rows, lag=lag, late=late)
    trained = actor.update(batch)
    hf.sync(actor, engine, during="generate")
    return trained


class Scorer(hf.Worker):
    """It gets weights between calls, and says of which version they are."""

    def __init__(self) -> None:
        self.version = 0

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def score(self, samples: Samples) -> Samples:
        """The samples, with the version of its weights."""
        versions = torch.full_like(samples.versions.tensor, self.version)
        return Samples(number=samples.number.tensor, tokens=samples.tokens.tensor, versions=versions)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None:
        """Take new weights."""
        self.version = int(weights.version.value)


class Judge(hf.Worker):
    """It says which samples it got together."""

    @register(Dispatch.DP_PROTO, balance="number")
    def score(self, samples: Samples) -> Samples:
        """The samples, with the number of the first for version."""
        versions = samples.number.tensor[:1, None].expand(samples.versions.tensor.shape)
        return Samples(number=samples.number.tensor, tokens=samples.tokens.tensor, versions=versions)


@hf.dataflow
def balanced_in_flight(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, late: Late = "drop") -> Trained:
    """A call in front of the queue is balanced by rows of another call."""
    trained = actor.update(hf.queue(judge.score(engine.generate(prompts)), lag=2, late=late))
    hf.sync(actor, engine, during="generate")
    return trained


@hf.dataflow
def scored_in_flight(prompts: Prompts, engine: Engine, scorer: Scorer, actor: Actor, *, late: Late = "wait") -> Trained:
    """Weights go to the engine while it generates, and to the scorer between its calls."""
    trained = actor.update(hf.queue(scorer.score(engine.generate(prompts)), lag=2, late=late))
    hf.sync(actor, engine, during="generate")
    hf.sync(actor, scorer)
    return trained


@hf.dataflow
def between_calls(
    prompts: Prompts, engine: Engine, actor: Actor, *, lag: int = 2, late: Late = "drop", rows: int | None = None
) -> Trained:
    """The same, with weights that wait for the end of a call."""
    batch = hf.queue(engine.generate(prompts), rows=rows, lag=lag, late=late)
    trained = actor.update(batch)
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def tensors_in_flight(
    prompts: Prompts, engine: TensorEngine, actor: TensorActor, *, lag: int = 2, late: Late = "wait"
) -> Trained:
    """Weights go to the engine as tensors while it generates."""
    batch = hf.queue(engine.generate(prompts), lag=lag, late=late)
    trained = actor.update(batch)
    hf.sync(actor, engine, during="generate")
    return trained


@hf.dataflow
def tensors_between_calls(prompts: Prompts, engine: TensorEngine, actor: TensorActor, *, lag: int = 3) -> Trained:
    """The same, with weights that wait for the end of a call."""
    trained = actor.update(hf.queue(engine.generate(prompts), lag=lag, late="wait"))
    hf.sync(actor, engine)
    return trained


def flight_deployment(
    engines: int = 2, tokens: int = TOKENS, pause: float = 0.0, at_once: int = 1, meet: bool = False
) -> hf.Deployment:
    """So many engine ranks, which pause within each token, and one that trains in a third of the time."""
    pool = hf.ResourcePool([engines], use_gpu=False, name="engine")
    return hf.Deployment(
        engine=hf.place(Engine, tokens, pause, at_once, meet, pool=pool),
        actor=hf.place(Actor, tokens * pause / 3, pool=hf.ResourcePool([1], use_gpu=False, name="actor")),
    )


def prompts(steps: int, size: int, first: int = 0) -> list[Prompts]:
    """Batches of prompts that are numbered in order."""
    return [Prompts(number=torch.arange(step * size, (step + 1) * size)) for step in range(first, steps)]
