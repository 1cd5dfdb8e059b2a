"""Which syncs come before the first dispatch: those that send what feeds a queue the weights that it reads."""

from __future__ import annotations

from typing import Literal

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.first_syncs import first_syncs


class B(hf.Dim):
    """Rows."""


class Rows(hf.Batch):
    x: hf.f32[B]


class Weights(hf.Batch):
    scale: hf.Metric[float, Literal["max"]]


@hf.function
def halved(weights: Weights) -> Weights:
    """Weights on their way."""
    return Weights(scale=weights.scale.value / 2)


class Role(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows:
        return rows

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Rows:
        return rows

    @hf.register(hf.Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> Weights:
        return Weights(scale=1.0)

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None: ...


@hf.dataflow
def plain(rows: Rows, engine: Role, actor: Role) -> Rows:
    """One sync, behind the queue."""
    trained = actor.update(hf.queue(engine.generate(rows), lag=1, late="wait"))
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def without_a_queue(rows: Rows, engine: Role, actor: Role) -> Rows:
    """The first step is made with what the engine has."""
    trained = actor.update(engine.generate(rows))
    hf.sync(actor, engine)
    return trained


@hf.dataflow
def two_copies(rows: Rows, engine: Role, critic: Role, actor: Role) -> Rows:
    """Only the engine feeds the queue; the critic's copy is read behind it."""
    trained = actor.update(critic.generate(hf.queue(engine.generate(rows), lag=1, late="wait")))
    hf.sync(actor, engine, critic)
    return trained


@hf.dataflow
def through_a_function(rows: Rows, engine: Role, actor: Role) -> Rows:
    """The sync is written out."""
    trained = actor.update(hf.queue(engine.generate(rows), lag=1, late="wait"))
    engine.load(halved(actor.weights()))
    return trained


@pytest.mark.parametrize(
    ("flow", "labels"),
    [
        (plain, ["actor.weights", "engine.load"]),
        (two_copies, ["actor.weights", "engine.load"]),
        (through_a_function, ["actor.weights", "halved", "engine.load"]),
        (without_a_queue, None),
    ],
)
def test_what_feeds_a_queue_gets_its_weights_first(flow: Dataflow[..., Rows], labels: list[str] | None) -> None:
    graph = first_syncs(flow.trace())
    assert (None if graph is None else [node.label for node in graph.nodes]) == labels


def test_its_program_reads_what_the_whole_one_reads() -> None:
    graph = first_syncs(through_a_function.trace())
    assert graph is not None
    assert [[ref.node for ref in node.refs] for node in graph.nodes] == [[], [0], [1]]
    assert set(graph.roles) == {"engine", "actor"}
