"""Programs with queues: an engine that generates with the weights of an actor, some updates old."""

from __future__ import annotations

import os
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, Ragged, bool_, f32, i64, register
from hfdsl.protocols.queueing import Late

DEADLY = 1000.0
"""A prompt that an engine does not survive."""


class B(hf.Dim):
    """Rows of a batch."""


class R(hf.Dim):
    """Tokens of a row."""


class Prompts(hf.Batch):
    x: f32[B]


class Samples(hf.Batch):
    x: f32[B]
    version: i64[B]


class Scored(hf.Batch):
    x: f32[B]
    version: i64[B]
    score: f32[B]


class Scores(hf.Batch):
    score: f32[B]


class Trained(hf.Batch):
    version: i64[B]
    update: i64[B]
    weight: f32[B]


class Weights(hf.Batch):
    version: hf.Metric[int, Literal["max"]]
    weight: hf.Metric[float, Literal["max"]]


class Engine(hf.Worker):
    def __init__(self) -> None:
        self.version, self.weight = 0, 1.0

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        """Samples that depend on the weights and on random numbers."""
        if prompts.x.tensor.max() >= DEADLY:
            os._exit(1)
        if prompts.x.tensor.min() <= 4 - DEADLY:
            raise ValueError("a prompt that no engine takes")
        noise = torch.rand(len(prompts))
        return Samples(x=prompts.x.tensor * self.weight + noise, version=torch.full((len(prompts),), self.version))

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None:
        """Take new weights."""
        self.version, self.weight = int(weights.version.value), float(weights.weight.value)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return {"version": torch.tensor(self.version), "weight": torch.tensor(self.weight, dtype=torch.float64)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """What it held."""
        self.version, self.weight = int(state["version"]), float(state["weight"])


class StampingEngine(Engine):
    """An engine that knows from the call alone under which version it generates."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        """The same samples."""
        samples = super().generate(prompts)
        stamp = torch.full((len(prompts),), hf.current_call().version)
        return Samples(x=samples.x.tensor, version=stamp)


class ForeignEngine(Engine):
    """An engine that begins with weights of its own."""

    def __init__(self) -> None:
        self.version, self.weight = 7, 5.0


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, samples: Samples) -> Scores:
        """Scores with random numbers of their own."""
        return Scores(score=samples.x.tensor * 2 + torch.rand(len(samples)))


class Actor(hf.Worker):
    def __init__(self) -> None:
        self.updates, self.weight = 0, 1.0

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Scored) -> Trained:
        """An update on what all ranks have, in rank order; returns the staleness of each row."""
        total = torch.stack(self.axis("dp").all_gather(batch.score.tensor.sum())).sum()
        self.weight = float(self.weight * 0.9 + 0.01 * total)
        self.updates += 1
        rows = len(batch)
        return Trained(
            version=batch.version.tensor,
            update=torch.full((rows,), self.updates - 1),
            weight=torch.full((rows,), self.weight),
        )

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        """The weights for engines."""
        return Weights(version=self.updates, weight=self.weight)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return {"updates": torch.tensor(self.updates), "weight": torch.tensor(self.weight, dtype=torch.float64)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """What it held."""
        self.updates, self.weight = int(state["updates"]), float(state["weight"])


class CheckingActor(Actor):
    """An actor that holds what the call says of versions against its own count and that of the engine."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Scored) -> Trained:
        """The same update."""
        call = hf.current_call()
        if (call.version, {call.rows_version}) != (self.updates, set(batch.version.tensor.tolist())):
            raise ValueError("other versions than those of this actor and of these rows")
        return super().update(batch)


@hf.dataflow
def flow(
    prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, lag: int | None = 2, late: Late | None = "wait"
) -> Trained:
    """Two stages, or one without a lag."""
    samples = engine.generate(prompts)
    scored = hf.merge(Scored, samples, judge.score(samples))
    batch = hf.queue(scored, lag=lag, late=None if lag is None else late)
    trained = actor.update(batch)
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def chain(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, first: int = 1, second: int = 1) -> Trained:
    """Three stages: the judge steps on its own."""
    samples = hf.queue(engine.generate(prompts), lag=first, late="wait")
    scored = hf.queue(hf.merge(Scored, samples, judge.score(samples)), lag=second, late="wait")
    trained = actor.update(scored)
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def branches(
    prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, first: int = 1, second: int = 1
) -> tuple[Trained, Scores]:
    """Two stages behind one, each with a result: the judge looks at rows whose weights the actor trains meanwhile."""
    samples = engine.generate(prompts)
    trained = actor.update(hf.queue(hf.merge(Scored, samples, judge.score(samples)), lag=first, late="wait"))
    hf.sync(actor, engine)
    return trained, judge.score(hf.queue(samples, lag=second, late="wait"))


class Answers(hf.Batch):
    text: hf.Obj[str, B]
    tokens: i64[B, Ragged[R]]
    keep: bool_[B]


class Everything(hf.Batch):
    x: f32[B]
    version: i64[B]
    score: f32[B]
    text: hf.Obj[str, B]
    tokens: i64[B, Ragged[R]]


@hf.function
def answers(samples: Samples) -> Answers:
    """Texts, rows of different lengths, and which rows to keep."""
    lengths = [1 + int(x) % 3 for x in samples.x.tensor.tolist()]
    return Answers(
        text=[f"{x:.6f}" for x in samples.x.tensor.tolist()],
        tokens=i64([torch.arange(length) for length in lengths]),
        keep=bool_(torch.tensor([length < 3 for length in lengths])),
    )


@hf.function
def weighed(batch: Everything) -> Scored:
    """The score, with the lengths of the text and of the tokens."""
    lengths = [len(text) + len(row) for text, row in zip(batch.text.objects, batch.tokens.rows, strict=True)]
    return Scored(x=batch.x.tensor, version=batch.version.tensor, score=batch.score.tensor + torch.tensor(lengths))


@hf.dataflow
def filtered(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Trained, Scores]:
    """A filter before the queue, columns of all kinds in it, and results of both stages."""
    samples = engine.generate(prompts)
    answered, scores = answers(samples), judge.score(samples)
    kept = hf.filter(hf.merge(Everything, samples, answered, scores), answered.keep)
    trained = actor.update(weighed(hf.fill(hf.queue(kept, lag=2, late="wait"), 4)))
    hf.sync(actor, engine)
    return trained, judge.score(samples)  # of the first stage, although it is written behind the second


class Chosen(hf.Batch):
    keep: bool_[B]


@hf.function
def chosen(prompts: Prompts) -> Chosen:
    """Prompts of even numbers."""
    return Chosen(keep=prompts.x.tensor % 2 == 0)


@hf.dataflow
def chosen_prompts(
    prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, lag: int = 2, late: Late = "wait"
) -> Trained:
    """A filter of prompts, for which the engine waits."""
    samples = engine.generate(hf.take(hf.filter(prompts, chosen(prompts).keep), 2))
    trained = actor.update(hf.queue(hf.merge(Scored, samples, judge.score(samples)), lag=lag, late=late))
    hf.sync(actor, engine)
    return trained


@hf.function(rows=hf.Whole)
def not_best(scored: Scored) -> Chosen:
    """All rows but those of the highest score."""
    return Chosen(keep=scored.score.tensor < scored.score.tensor.max())


@hf.function(rows=hf.Whole)
def not_first(scored: Scored) -> Chosen:
    """All rows but the first."""
    return Chosen(keep=torch.arange(len(scored)) > 0)


@hf.dataflow
def filtered_between(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Trained:
    """Two filters in the stage between two queues, and one in front of both."""
    samples = engine.generate(hf.fill(hf.filter(prompts, chosen(prompts).keep), 4))
    samples = hf.queue(samples, lag=1, late="wait")
    scored = hf.merge(Scored, samples, judge.score(samples))
    others = hf.filter(scored, not_best(scored).keep)
    kept = hf.filter(others, not_first(others).keep)
    trained = actor.update(hf.fill(hf.queue(kept, lag=1, late="wait"), 4))
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def look(prompts: Prompts, engine: Engine) -> Samples:
    """What the engine generates, beside the training."""
    return engine.generate(prompts)


def deployment(engine: type[Engine] = Engine, actor: type[Actor] = Actor) -> hf.Deployment:
    """A pool for each role, of two, one and two processes."""
    return hf.Deployment(
        engine=hf.place(engine, pool=hf.ResourcePool([2], use_gpu=False, name="engine")),
        judge=hf.place(Judge, pool=hf.ResourcePool([1], use_gpu=False, name="judge")),
        actor=hf.place(actor, pool=hf.ResourcePool([2], use_gpu=False, name="actor")),
    )


def one_pool() -> hf.Deployment:
    """All roles on one pool of two processes, where a lag of 0 is possible."""
    pool = hf.ResourcePool([2], use_gpu=False, name="all")
    return hf.Deployment(
        engine=hf.place(Engine, pool=pool), judge=hf.place(Judge, pool=pool), actor=hf.place(Actor, pool=pool)
    )


def rows(count: int, size: int = 4) -> list[Prompts]:
    """Batches of prompts."""
    return [Prompts(x=torch.arange(size, dtype=torch.float32) + step) for step in range(count)]
