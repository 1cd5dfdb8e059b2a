"""Programs with several dynamic queues: one behind another, and beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hfdsl as hf
from hfdsl import Dispatch, Ragged, bool_, f32, i64, register
from hfdsl.protocols.queueing import Late
from tests.runtime.stage_programs import Actor, B, Engine, Judge, Prompts, R, Samples, Scored, Scores, Trained


class Sampled(hf.Batch):
    number: i64[B]
    text: hf.Obj[str, B]
    version: i64[B]
    noise: f32[B]
    tokens: i64[B, Ragged[R]]
    response_mask: bool_[B, Ragged[R]]


class Fitted(hf.Batch):
    number: i64[B]
    version: i64[B]
    noise: f32[B]
    update: i64[B]


class Pages(hf.Batch):
    page: i64[B]


class Lines(hf.Batch):
    page: i64[B]
    noise: f32[B]


class Critic(Actor):
    """Trains a state of its own on the same samples, and holds their versions against its count."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("values")
    @hf.corrects("policy", lag=8)
    def fit(self, batch: Sampled) -> Fitted:
        """What this update trained on."""
        call, versions = hf.current_call(), batch.version.tensor.tolist()
        row_versions = [call.rows_version] * len(batch) if call.row_versions is None else list(call.row_versions)
        if call.version != self.updates or row_versions != versions:
            raise ValueError(f"version {call.version} of {self.updates}, rows {row_versions} of {versions}")
        self.updates += 1
        update = torch.full((len(batch),), self.updates - 1)
        return Fitted(number=batch.number.tensor, version=batch.version.tensor, noise=batch.noise.tensor, update=update)


class Library(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def lines(self, pages: Pages) -> Lines:
        """A line of each page."""
        return Lines(page=pages.page.tensor, noise=torch.rand(len(pages)))


class Reader(Actor):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def read(self, batch: Scored, lines: Lines) -> Trained:
        """An update on rows of two queues: as many tokens count as the page has."""
        trained = Actor.update(self, batch)
        return Trained(
            number=trained.number.tensor,
            version=trained.version.tensor,
            noise=trained.noise.tensor + lines.noise.tensor,
            update=trained.update.tensor,
            unmasked=lines.page.tensor,
        )


@hf.dataflow
def series(
    prompts: Prompts,
    engine: Engine,
    judge: Judge,
    actor: Actor,
    *,
    lags: tuple[int, int] = (1, 1),
    late: tuple[Late, Late] = ("drop", "drop"),
    group: int = 1,
    rows: tuple[int | None, int | None] = (None, None),
    drops: int | None = None,
) -> Trained:
    """The judge has a queue in front of it and one behind; columns of both stages before the actor come to it."""
    repeated = hf.repeat(prompts, group)
    sampled = hf.merge(Sampled, repeated, engine.generate(repeated))
    batch = hf.queue(sampled, rows=rows[0], group=group, lag=lags[0], late=late[0])
    scores = judge.score(hf.merge(Samples, batch))
    scored = hf.merge(Scored, batch, scores)
    if drops is not None:
        keep = judge.choose(hf.merge(Prompts, batch), hf.merge(Samples, batch), drops=drops).keep
        scored = hf.filter(scored, keep, group=group)
    trained = actor.update(hf.queue(scored, rows=rows[1], group=group, lag=lags[1], late=late[1]))
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def beside(
    prompts: Prompts,
    engine: Engine,
    judge: Judge,
    actor: Actor,
    critic: Critic,
    *,
    lags: tuple[int, int] = (1, 1),
    late: tuple[Late, Late] = ("drop", "drop"),
    group: int = 1,
    rows: tuple[int | None, int | None] = (None, None),
) -> tuple[Trained, Fitted]:
    """An actor and a critic, each behind a queue of its own; only the actor's rows wait for the judge."""
    repeated = hf.repeat(prompts, group)
    samples = engine.generate(repeated)
    sampled = hf.merge(Sampled, repeated, samples)
    scored = hf.merge(Scored, sampled, judge.score(samples))
    trained = actor.update(hf.queue(scored, rows=rows[0], group=group, lag=lags[0], late=late[0]))
    fitted = critic.fit(hf.queue(sampled, rows=rows[1], group=group, lag=lags[1], late=late[1]))
    hf.sync(actor, engine)
    return trained, fitted


@hf.dataflow
def joined(
    prompts: Prompts,
    pages: Pages,
    engine: Engine,
    judge: Judge,
    library: Library,
    actor: Reader,
    *,
    lags: tuple[int, int] = (1, 1),
    late: tuple[Late, Late] = ("refill", "refill"),
    group: int = 1,
    rows: tuple[int | None, int | None] = (None, None),
) -> Trained:
    """Two stages that dispatch prompts and pages, and an update on rows of both."""
    samples = engine.generate(prompts)
    scored = hf.merge(Scored, prompts, samples, judge.score(samples))
    batch = hf.queue(scored, rows=rows[0], group=group, lag=lags[0], late=late[0])
    lines = hf.queue(library.lines(pages), rows=rows[1], group=group, lag=lags[1], late=late[1])
    trained = actor.read(batch, lines)
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def three_queues(
    prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, lags: tuple[int, int, int] = (1, 1, 1)
) -> Scores:
    """Two stages between three queues."""
    scores = engine.mark(prompts)
    for lag in lags[:-1]:
        scores = judge.rate(hf.queue(scores, lag=lag, late="drop"))
    return actor.rate(hf.queue(scores, lag=lags[-1], late="drop"))


@hf.dataflow
def trains_between(prompts: Prompts, engine: Engine, critic: Critic, actor: Actor) -> Scores:
    """The stage between two queues trains."""
    batch = hf.queue(hf.merge(Sampled, prompts, engine.generate(prompts)), lag=1, late="drop")
    return actor.rate(hf.queue(Scores(score=critic.fit(batch).noise), lag=1, late="drop"))


@hf.dataflow
def waits_between(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Scores:
    """The first queue waits, in front of one that decides."""
    rated = judge.rate(hf.queue(engine.mark(prompts), lag=1, late="wait"))
    return actor.rate(hf.queue(rated, lag=1, late="drop"))


@hf.dataflow
def regroups(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Scores:
    """Groups of the second queue are not those of the first."""
    rated = judge.rate(hf.queue(engine.mark(prompts), lag=1, late="drop"))
    return actor.rate(hf.queue(hf.take(rated, 2), lag=1, late="drop"))


@hf.dataflow
def refills_both(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Scores, Scores]:
    """What one queue drops would come into the other one again."""
    marked = engine.mark(prompts)
    first = judge.rate(hf.queue(marked, lag=1, late="refill"))
    return first, actor.rate(hf.queue(marked, lag=1, late="drop"))


@hf.dataflow
def returns_in_front(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Scores, Scores]:
    """The queue is dynamic unless a step puts in eight rows, and a value from in front of it is returned."""
    marked = engine.mark(prompts)
    return judge.rate(hf.queue(marked, rows=8, lag=3, late="wait")), marked


@hf.function
def doubled(scores: Scores) -> Scores:
    """A function of no role."""
    return Scores(score=2 * scores.score.tensor)


@hf.dataflow
def doubles_between(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> Scores:
    """A stage without a role."""
    batch = doubled(hf.queue(judge.rate(engine.mark(prompts)), lag=1, late="drop"))
    return actor.rate(hf.queue(batch, lag=1, late="drop"))


def to_all(group: Any, scores: Scores) -> tuple[tuple[list[Scores]], dict[str, Any]]:
    """All rows to all ranks."""
    return ([scores] * group.world_size,), {}


def of_first(group: Any, results: Sequence[Scores]) -> Scores:
    """The result of rank 0."""
    return results[0]


class Copied(Judge):
    @register({"dispatch_fn": to_all, "collect_fn": of_first})
    def copied(self, scores: Scores) -> Scores:
        """The same scores."""
        return scores


@hf.dataflow
def copies_in_driver(prompts: Prompts, engine: Engine, judge: Copied, actor: Actor) -> Scores:
    """A protocol of two functions behind a queue."""
    return actor.rate(judge.copied(hf.queue(engine.mark(prompts), lag=1, late="drop")))


@hf.dataflow
def doubles_copies(prompts: Prompts, engine: Engine, judge: Copied, actor: Actor) -> tuple[Scores, Scores]:
    """A function behind a queue runs in the processes of a role that gets its rows there."""
    batch = hf.queue(engine.mark(prompts), lag=1, late="drop")
    scores = doubled(batch)
    return judge.copied(scores), actor.rate(batch)


@hf.dataflow
def takes_unevenly(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Scores, Scores]:
    """One queue would be full before the other has a batch."""
    marked = engine.mark(prompts)
    first = judge.rate(hf.queue(marked, rows=2, lag=3, late="drop"))
    return first, actor.rate(hf.queue(marked, rows=4, lag=3, late="drop"))


@hf.dataflow
def takes_parts(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor) -> tuple[Scores, Scores]:
    """A batch is not made of whole steps."""
    marked = engine.mark(prompts)
    first = judge.rate(hf.queue(marked, rows=6, lag=3, late="drop"))
    return first, actor.rate(hf.queue(marked, rows=6, lag=3, late="drop"))


@hf.dataflow
def reads_faster(
    prompts: Prompts, others: Prompts, engine: Engine, judge: Judge, actor: Actor
) -> tuple[Scores, Scores]:
    """An update takes half a batch of the loader from one source, and a whole one from the other."""
    first = judge.rate(hf.queue(engine.mark(prompts), rows=2, lag=3, late="refill"))
    return first, actor.rate(hf.queue(engine.mark(others), rows=4, lag=3, late="refill"))


def pages(steps: int, size: int) -> list[Pages]:
    """Batches of pages that are numbered in order."""
    return [Pages(page=torch.arange(step * size, (step + 1) * size)) for step in range(steps)]
