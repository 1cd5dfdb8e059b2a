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
from hfdsl.rl.training.run_folder.samples import records
from hfdsl.runtime.running import Running
from hfdsl.types.batches import Batch

Recording: TypeAlias = Callable[[Running], AbstractContextManager[None]]
"""The context in which a plan takes a step."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step: the cursor after it, its metrics, the seconds of each node, and its rounds."""

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
        """The plans that a step runs."""
        return (self.running,)

    def step(self, cursor: Cursor, step: int, recorded: Recording) -> StepResult:
        """One step; errors as for ``Feed.take``, ``Running.step`` and ``values_of``."""
        batch, cursor = self.feed.take(cursor)
        with recorded(self.running):
            result = self.running.step(batch)
        return StepResult(cursor, values_of(self.running.plan, result, step), self.running.timings)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Steps of rounds of a dataflow that samples, and then an update by another on exactly the rows that it takes.

    The driver's memory holds the rows of rounds until the batch is full.
    """

    feed: Feed | Prefetcher
    sampling: Running
    updating: Running
    config: UpdateConfig

    @property
    def runs(self) -> tuple[Running, ...]:
        """The plans that a step runs."""
        return self.sampling, self.updating

    def step(self, cursor: Cursor, step: int, recorded: Recording) -> StepResult:
        """Take as many rounds as the update needs, and the update, which alone is recorded.

        Raises:
            SizeError: HF321 if the rounds keep too few rows.
            Others as for ``Single.step``.
        """
        batches, values, nodes = list[Batch](), dict[str, float](), dict[str, float]()
        rounds = gathered = 0
        while gathered < self.config.rows and rounds < self.config.rounds:
            prompts, cursor = self.feed.take(cursor)
            result = self.sampling.step(prompts)
            values = _added(values, values_of(self.sampling.plan, result, step))
            nodes = _added(nodes, self.sampling.timings)
            batches.append(
                next(record for record in records(result) if isinstance(record, update_record(self.updating.plan)))
            )
            rounds, gathered = rounds + 1, gathered + len(batches[-1])
        batch = self._batch(batches, step)
        with recorded(self.updating):
            result = self.updating.step(batch)
        means = {name: total / rounds for name, total in values.items()}
        counts = {"rounds/number": float(rounds), "rounds/kept": float(gathered)}
        values = means | values_of(self.updating.plan, result, step) | counts
        return StepResult(cursor, values, _added(nodes, self.updating.timings), rounds)

    def _batch(self, batches: list[Batch], step: int) -> Batch:
        """The first rows that the rounds kept, as many as the update takes."""
        batch, config = type(batches[0]).__hf_concat__(batches), self.config
        if len(batch) < config.rows and (config.short == "raise" or not len(batch)):
            raise SizeError(
                "HF321",
                f"step {step}: '{self.updating.plan.name}' takes {config.rows} rows, and {config.rounds} rounds of "
                f"'{self.sampling.plan.name}' keep only {len(batch)}; allow more rounds with update.rounds"
                + (', or repeat rows from the first with update.short = "repeat"' if len(batch) else ""),
            )
        return batch[: config.rows] if len(batch) >= config.rows else hf.fill(batch, config.rows)


def _added(totals: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: totals.get(name, 0.0) + more.get(name, 0.0) for name in {**totals, **more}}


def update_record(plan: Plan) -> type[Batch]:
    """The record that an update takes."""
    return next(node.op.record for node in plan.graph.inputs if isinstance(node.op, Input))


def check_rounds(sampling: Plan, updating: Plan, config: UpdateConfig) -> None:
    """Check that rounds return what the update takes.

    Raises:
        ConfigError: HF901 if a round does not return exactly one record that the update takes, if the number of rows
            would cut a group, or if all rounds together have fewer.
    """
    node = sampling.node(kept_rows(sampling, updating).node)
    group = node.op.group if isinstance(node.op, Filter) else 1
    if config.rows % group:
        raise ConfigError(
            "HF901",
            f"update.rows = {config.rows} would cut a group: '{sampling.name}' keeps groups of {group} rows",
            "update.rows",
        )
    batch_node = node.batch.node if isinstance(node.op, Filter) and node.batch else node.id
    limit = row_table(sampling, sampling.dims).rows.get(batch_node)
    if config.short == "raise" and limit is not None and limit * config.rounds < config.rows:
        raise ConfigError(
            "HF901",
            f"update.rows = {config.rows}, and '{sampling.name}' keeps at most {limit} rows: update.rounds = "
            f"{config.rounds} is too few, {-(-config.rows // limit)} may be enough",
            "update.rounds",
        )


def kept_rows(sampling: Plan, updating: Plan) -> Ref:
    """The result of a round for the update.

    Raises:
        ConfigError: HF901 if it is not exactly one record that the update takes.
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
            f"update: '{updating.name}' takes {takes[0].__name__}, and '{sampling.name}' returns {count}; it must "
            "return one, the rows that it keeps",
            "update",
        )
    return refs[0]
