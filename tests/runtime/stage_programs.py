"""A program with a dynamic queue: every row says which prompt it is of, and under which version it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, Ragged, bool_, f32, i64, register
from hfdsl.protocols.queueing import Late


class B(hf.Dim):
    """Prompts of a step."""


class R(hf.Dim):
    """Tokens of a row."""


class Prompts(hf.Batch):
    number: i64[B]
    text: hf.Obj[str, B]


class Samples(hf.Batch):
    version: i64[B]
    noise: f32[B]
    tokens: i64[B, Ragged[R]]
    response_mask: bool_[B, Ragged[R]]


class Scores(hf.Batch):
    score: f32[B]


class Kept(hf.Batch):
    keep: bool_[B]


class Scored(hf.Batch):
    number: i64[B]
    text: hf.Obj[str, B]
    version: i64[B]
    noise: f32[B]
    tokens: i64[B, Ragged[R]]
    response_mask: bool_[B, Ragged[R]]
    score: f32[B]


class Trained(hf.Batch):
    number: i64[B]
    version: i64[B]
    noise: f32[B]
    update: i64[B]
    unmasked: i64[B]


class Weights(hf.Batch):
    version: hf.Metric[int, Literal["max"]]


class Engine(hf.Worker):
    def __init__(self) -> None:
        self.version = 0

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        """Between one and three tokens a row."""
        rows = len(prompts)
        lengths = [1 + number % 3 for number in prompts.number.tensor.tolist()]
        return Samples(
            version=torch.full((rows,), self.version),
            noise=torch.rand(rows),
            tokens=i64([torch.arange(length) for length in lengths]),
            response_mask=bool_([torch.ones(length, dtype=torch.bool) for length in lengths]),
        )

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    @hf.reads("policy")
    def answer(self, prompts: Prompts) -> Samples:
        """As ``generate``, of any number of rows."""
        return Engine.generate(self, prompts)

    @register(Dispatch.DP_PROTO)
    def choose(self, prompts: Prompts, *, drops: int) -> Kept:
        """The prompts with a number whose rest by seven has no bit in ``drops``."""
        return Kept(keep=torch.tensor([not drops >> number % 7 & 1 for number in prompts.number.tensor.tolist()]))

    @register(Dispatch.DP_PROTO)
    def mark(self, prompts: Prompts) -> Scores:
        """A score of prompts alone."""
        return Scores(score=prompts.number.tensor.to(torch.float32))

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None:
        """Take new weights."""
        self.version = int(weights.version.value)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return {"version": torch.tensor(self.version)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """What it held."""
        self.version = int(state["version"])


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def rate(self, scores: Scores) -> Scores:
        """The same scores."""
        return scores

    @register(Dispatch.DP_PROTO)
    def choose(self, prompts: Prompts, samples: Samples, *, drops: int) -> Kept:
        """As the engine's, once there are samples."""
        return Kept(keep=torch.tensor([not drops >> number % 7 & 1 for number in prompts.number.tensor.tolist()]))

    @register(Dispatch.DP_PROTO)
    def screen(self, prompts: Prompts, *, drops: int) -> Kept:
        """As the engine's ``choose``."""
        return Kept(keep=torch.tensor([not drops >> number % 7 & 1 for number in prompts.number.tensor.tolist()]))

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def score(self, samples: Samples) -> Scores:
        """A score with random numbers of its own."""
        return Scores(score=samples.noise.tensor + torch.rand(len(samples)))


class Actor(hf.Worker):
    def __init__(self) -> None:
        self.updates = 0

    @register(Dispatch.DP_PROTO)
    def rate(self, scores: Scores) -> Scores:
        """The same scores."""
        return scores

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Scored) -> Trained:
        """What this update trained on; the call must say the versions that the rows have."""
        call, versions = hf.current_call(), batch.version.tensor.tolist()
        row_versions = [call.rows_version] * len(batch) if call.row_versions is None else list(call.row_versions)
        if call.version != self.updates or row_versions != versions:
            raise ValueError(f"version {call.version} of {self.updates}, rows {row_versions} of {versions}")
        if [f"prompt {number}" for number in batch.number.tensor.tolist()] != list(batch.text.objects):
            raise ValueError("rows of different prompts")
        self.updates += 1
        return Trained(
            number=batch.number.tensor,
            version=batch.version.tensor,
            noise=batch.noise.tensor,
            update=torch.full((len(batch),), self.updates - 1),
            unmasked=torch.tensor([int(row.sum()) for row in batch.response_mask.rows]),
        )

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def learn(self, scores: Scores) -> Scores:
        """An update that reads no mask."""
        return scores

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        """The weights for engines."""
        return Weights(version=self.updates)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return {"updates": torch.tensor(self.updates)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """What it held."""
        self.updates = int(state["updates"])


@hf.dataflow
def deciding(
    prompts: Prompts,
    engine: Engine,
    judge: Judge,
    actor: Actor,
    *,
    lag: int = 1,
    late: Late = "drop",
    group: int = 1,
    rows: int | None = None,
) -> Trained:
    """Groups are rows of one prompt; columns of the caller go through the queue too."""
    repeated = hf.repeat(prompts, group)
    samples = engine.generate(repeated)
    scored = hf.merge(Scored, repeated, samples, judge.score(samples))
    batch = hf.queue(scored, rows=rows, group=group, lag=lag, late=late)
    trained = actor.update(batch)
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def unmasked(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Scores:
    """Behind the queue no call reads a mask."""
    return judge.rate(hf.queue(engine.mark(prompts), lag=1, late="mask"))


@hf.dataflow
def masked_elsewhere(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Scores, Scores]:
    """One call reads the mask, and another one trains."""
    samples = engine.generate(prompts)
    batch = hf.queue(hf.merge(Scored, prompts, samples, judge.score(samples)), lag=1, late="mask")
    trained = actor.learn(hf.merge(Scores, batch))
    hf.sync(actor, engine)
    return judge.score(hf.merge(Samples, batch)), trained


@hf.dataflow
def returning_both(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Scores, Scores]:
    """A result of each stage."""
    marked = engine.mark(prompts)
    return judge.rate(hf.queue(marked, lag=1, late="drop")), marked


@hf.dataflow
def sampling(
    prompts: Prompts,
    engine: Engine,
    judge: Judge,
    actor: Actor,
    *,
    lag: int = 1,
    late: Late = "refill",
    group: int = 1,
    rows: int | None = None,
    drops: int = 0,
) -> Trained:
    """Dynamic sampling: a filter of the groups that were sampled, a call behind it, and the queue."""
    repeated = hf.repeat(prompts, group)
    samples = engine.generate(repeated)
    keep = judge.choose(repeated, samples, drops=drops).keep
    kept = hf.filter(samples, keep, group=group)
    scored = hf.merge(Scored, hf.filter(repeated, keep, group=group), kept, judge.score(kept))
    trained = actor.update(hf.queue(scored, rows=rows, group=group, lag=lag, late=late))
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def choosing(
    prompts: Prompts,
    engine: Engine,
    judge: Judge,
    actor: Actor,
    *,
    lag: int = 1,
    late: Late = "refill",
    group: int = 1,
    rows: int | None = None,
    drops: int = 0,
) -> Trained:
    """A filter of the prompts, before anything is sampled."""
    repeated = hf.repeat(hf.filter(prompts, engine.choose(prompts, drops=drops).keep), group)
    samples = engine.answer(repeated)
    scored = hf.merge(Scored, repeated, samples, judge.score(samples))
    trained = actor.update(hf.queue(scored, rows=rows, group=group, lag=lag, late=late))
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def screening(
    prompts: Prompts,
    engine: Engine,
    judge: Judge,
    actor: Actor,
    *,
    lag: int = 1,
    late: Late = "refill",
    group: int = 1,
    rows: int | None = None,
    drops: int = 0,
) -> Trained:
    """As ``choosing``, by the judge's processes."""
    repeated = hf.repeat(hf.filter(prompts, judge.screen(prompts, drops=drops).keep), group)
    samples = engine.answer(repeated)
    scored = hf.merge(Scored, repeated, samples, judge.score(samples))
    trained = actor.update(hf.queue(scored, rows=rows, group=group, lag=lag, late=late))
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def filled(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Scores:
    """What is put in is not one group for each prompt."""
    marked = engine.mark(prompts)
    return judge.rate(hf.queue(hf.take(marked, 4), lag=1, late="refill"))


@hf.dataflow
def halved(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Scores:
    """The queue gets the second half of a step, whose groups have other places than their prompts."""
    _, second = hf.minibatches(engine.mark(prompts), 2)
    return judge.rate(hf.queue(second, lag=1, late="refill"))


@hf.dataflow
def filled_up(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Scores:
    """A group is not of the prompt in its place: the first ones come again where a filter has removed some."""
    kept = hf.filter(engine.mark(prompts), engine.choose(prompts, drops=1).keep)
    return judge.rate(hf.queue(hf.fill(kept, 4), lag=1, late="refill"))


def stage_deployment(trainers: int = 1) -> hf.Deployment:
    """Engine and judge have two ranks, which are as fast as they are."""
    return hf.Deployment(
        engine=hf.place(Engine, pool=hf.ResourcePool([2], use_gpu=False, name="engine")),
        judge=hf.place(Judge, pool=hf.ResourcePool([2], use_gpu=False, name="judge")),
        actor=hf.place(Actor, pool=hf.ResourcePool([trainers], use_gpu=False, name="actor")),
    )


def prompts(steps: int, size: int, first: int = 0) -> list[Prompts]:
    """Batches of prompts that are numbered in order."""
    numbers = [list(range(step * size, (step + 1) * size)) for step in range(first, steps)]
    return [Prompts(number=torch.tensor(batch), text=[f"prompt {n}" for n in batch]) for batch in numbers]


@dataclass(frozen=True)
class GivenSeconds:
    """Seconds of calls by step and rank, which begin again after the last."""

    seconds: Sequence[Sequence[float]]

    def of(self, *call: object) -> float:
        """Those of (seed, label, step) or (seed, label, step, rank)."""
        step, rank = int(str(call[2])), int(str(call[3])) if len(call) > 3 else 0
        by_rank = self.seconds[step % len(self.seconds)]
        return by_rank[rank % len(by_rank)]
