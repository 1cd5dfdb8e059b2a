"""Rounds of sampling that fill a batch: a step of one dataflow after another, until there is enough for an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

import hfdsl as hf
from hfdsl.errors import ConfigError, SizeError
from hfdsl.graph.program import Filter, Input, Ref
from hfdsl.graph.signatures import RecordType
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import row_table
from hfdsl.rl.data.feed import Feed, Prefetcher
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.training.metrics import values_of
from hfdsl.rl.training.run_config import UpdateConfig
from hfdsl.rl.training.samples import records
from hfdsl.runtime.running import Running
from hfdsl.types.batches import Batch

Recorded: TypeAlias = Callable[[Running], AbstractContextManager[None]]
"""From what is stepped to within what it is stepped."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step came to: the place in the data after it, metrics, seconds of each node, and its rounds."""

    cursor: Cursor
    values: dict[str, float]
    nodes: dict[str, float]
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Single:
    """Steps of one dataflow, each on one batch of the feed."""

    feed: Feed | Prefetcher
    running: Running

    @property
    def runs(self) -> tuple[Running, ...]:
        """What is stepped."""
        return (self.running,)

    def step(self, cursor: Cursor, step: int, recorded: Recorded) -> Taken:
        """One step; errors as for ``Feed.take``, ``Running.step`` and ``values_of``."""
        batch, cursor = self.feed.take(cursor)
        with recorded(self.running):
            result = self.running.step(batch)
        return Taken(cursor, values_of(self.running.plan, result, step), self.running.timings)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Steps of a dataflow that samples, and then one of another on exactly the rows that it asks for.

    The rows that rounds keep are in the memory of the driver until the batch is full.
    """

    feed: Feed | Prefetcher
    sampling: Running
    updating: Running
    asked: UpdateConfig

    @property
    def runs(self) -> tuple[Running, ...]:
        """What is stepped."""
        return self.sampling, self.updating

    def step(self, cursor: Cursor, step: int, recorded: Recorded) -> Taken:
        """As many rounds as it takes, and the update, which is what is recorded.

        Raises:
            SizeError: HF321 where the rounds keep too little.
            Others as ``Single.step``.
        """
        batches, values, nodes = list[Batch](), dict[str, float](), dict[str, float]()
        rounds = gathered = 0
        while gathered < self.asked.rows and rounds < self.asked.rounds:
            prompts, cursor = self.feed.take(cursor)
            result = self.sampling.step(prompts)
            values = _added(values, values_of(self.sampling.plan, result, step))
            nodes = _added(nodes, self.sampling.timings)
            batches.append(
                next(record for record in records(result) if isinstance(record, taken_by(self.updating.plan)))
            )
            rounds, gathered = rounds + 1, gathered + len(batches[-1])
        batch = self._batch(batches, step)
        with recorded(self.updating):
            result = self.updating.step(batch)
        means = {name: total / rounds for name, total in values.items()}
        counts = {"rounds/number": float(rounds), "rounds/kept": float(gathered)}
        values = means | values_of(self.updating.plan, result, step) | counts
        return Taken(cursor, values, _added(nodes, self.updating.timings), rounds)

    def _batch(self, batches: list[Batch], step: int) -> Batch:
        """The first rows that were kept, as many as the update asks for."""
        batch, asked = type(batches[0]).__hf_concat__(batches), self.asked
        if len(batch) < asked.rows and (asked.short == "raise" or not len(batch)):
            raise SizeError(
                "HF321",
                f"step {step}: '{self.updating.plan.name}' takes {asked.rows} rows, and {asked.rounds} rounds of "
                f"'{self.sampling.plan.name}' keep {len(batch)}; allow more with update.rounds"
                + (', or have rows start over with update.short = "repeat"' if len(batch) else ""),
            )
        return batch[: asked.rows] if len(batch) >= asked.rows else hf.fill(batch, asked.rows)


def _added(totals: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: totals.get(name, 0.0) + more.get(name, 0.0) for name in {**totals, **more}}


def taken_by(plan: Plan) -> type[Batch]:
    """The record that the update takes."""
    return next(node.op.record for node in plan.graph.inputs if isinstance(node.op, Input))


def check_rounds(sampling: Plan, updating: Plan, asked: UpdateConfig) -> None:
    """Hold what a round gives against what the update takes.

    Raises:
        ConfigError: HF901 where a round does not return just one record that the update takes, where the rows that are
            asked for cut a group, or where all rounds together have fewer.
    """
    node = sampling.node(kept_by(sampling, updating).node)
    group = node.op.group if isinstance(node.op, Filter) else 1
    if asked.rows % group:
        raise ConfigError(
            "HF901",
            f"update.rows = {asked.rows} would cut a group: '{sampling.name}' keeps groups of {group} rows",
            "update.rows",
        )
    whole = node.batch.node if isinstance(node.op, Filter) and node.batch else node.id
    most = row_table(sampling, sampling.dims).rows.get(whole)
    if asked.short == "raise" and most is not None and most * asked.rounds < asked.rows:
        raise ConfigError(
            "HF901",
            f"update.rows = {asked.rows}, and '{sampling.name}' keeps at most {most} rows: update.rounds = "
            f"{asked.rounds} is too few, {-(-asked.rows // most)} may do",
            "update.rounds",
        )


def kept_by(sampling: Plan, updating: Plan) -> Ref:
    """What a round returns for the update.

    Raises:
        ConfigError: HF901 where it is not just one record that the update takes.
    """
    takes = [node.op.record for node in updating.graph.inputs if isinstance(node.op, Input)]
    if len(takes) != 1:
        named = ", ".join(record.__name__ for record in takes) or "nothing"
        raise ConfigError(
            "HF901", f"update: '{updating.name}' takes {named}; rounds fill one batch", "update.algorithm"
        )
    refs = [
        ref
        for ref in sampling.graph.output.refs()
        if not ref.column
        and isinstance(kind := sampling.node(ref.node).result, RecordType)
        and issubclass(kind.record, takes[0])
    ]
    if len(refs) != 1:
        count = f"{len(refs)} of them" if refs else "none"
        raise ConfigError(
            "HF901",
            f"update: '{updating.name}' takes {takes[0].__name__}, and '{sampling.name}' returns {count}; it has to "
            "return one, the rows that it keeps",
            "update",
        )
    return refs[0]
