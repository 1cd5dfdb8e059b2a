# mypy: disable-error-code="empty-body"
"""Stages: programs split at their queues, held against networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import example, given, strategies

import hfdsl as hf
from hfdsl import Dispatch, i64, register
from hfdsl.errors import DefinitionError, WiringError
from hfdsl.graph.infer import infer
from hfdsl.graph.program import Graph, Input, Queue, Ref
from hfdsl.graph.stages import split, stages


class B(hf.Dim): ...


class Rows(hf.Batch):
    ids: i64[B]


class Pair(hf.Batch):
    ids: i64[B]
    others: i64[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def one(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def two(self, rows: Rows, others: Rows) -> Rows: ...


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.corrects("policy", lag=8)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, float]: ...

    @register(Dispatch.ONE_TO_ALL)
    def zero(self) -> None: ...


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, float]) -> None: ...


@hf.dataflow
def asynchronous(rows: Rows, engine: Engine, trainer: Trainer) -> tuple[Rows, Rows]:
    rollout = engine.generate(hf.repeat(rows, 4))
    batch = hf.queue(rollout, group=4, lag=2, late="wait")
    trainer.zero()
    result = trainer.update(batch)
    hf.sync(trainer, engine)
    return rollout, result


def test_a_program_is_split_at_its_queue_and_a_sync_belongs_to_the_writer() -> None:
    graph = asynchronous.trace()
    rollout, train = stages(graph, infer(graph))
    assert [node.label for node in rollout.graph.nodes] == ["rows", "repeat", "engine.generate"]
    assert [node.label for node in train.graph.nodes] == [
        "queue", "trainer.zero", "trainer.update", "trainer.weights", "engine.load",
    ]  # fmt: skip  # in program order
    assert (rollout.inputs, train.inputs) == (("rows",), ())
    assert rollout.feeds == train.reads == {"queue": 3}
    assert [graph.nodes[ref.node].label for ref in rollout.results] == ["engine.generate"]
    assert [graph.nodes[ref.node].label for ref in train.results] == ["trainer.update"]
    [sync] = train.syncs
    assert [graph.nodes[node].label for node in (sync.export, sync.load)] == ["trainer.weights", "engine.load"]
    assert str(infer(train.graph).rows(0)) == "B*4"


def test_a_queue_without_a_lag_is_a_synchronous_edge() -> None:
    @hf.dataflow
    def flow(rows: Rows, role: Role) -> Rows:
        return role.two(hf.queue(rows), rows)

    graph = flow.trace()
    [stage] = stages(graph)
    assert stage.graph is graph
    assert flow.check().ok


@pytest.mark.parametrize("lag", [None, 0, 3])
def test_eagerly_a_queue_hands_on_what_it_gets(lag: int | None) -> None:
    rows = Rows(ids=torch.tensor([1, 2]))
    assert hf.queue(rows, lag=lag, late=None if lag is None else "drop") is rows


@pytest.mark.parametrize(
    "arguments",
    [
        {"lag": -1}, {"lag": True}, {"lag": 1.5}, {"lag": 1, "late": "later"}, {"late": "wait"}, {"rows": 0},
        {"rows": "B"}, {"group": 0}, {"rows": 10, "group": 4}, {"lag": 1, "late": ["wait"]},
    ],
)  # fmt: skip  # a list of mistakes
def test_arguments_without_a_meaning_are_refused_eagerly_and_in_a_trace(arguments: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError) as error:
        hf.queue(Rows(ids=torch.tensor([1, 2])), **arguments)
    assert error.value.code == "HF740"

    @hf.dataflow
    def flow(rows: Rows, role: Role) -> Rows:
        return role.one(hf.queue(rows, **arguments))

    assert [(f.code, f.message) for f in flow.check().findings] == [("HF740", error.value.message)]


def test_what_is_no_record_is_refused() -> None:
    column: Any = hf.i64(torch.tensor([1]))
    with pytest.raises(WiringError, match="HF206: queue takes a record"):
        hf.queue(column)

    @hf.dataflow
    def flow(rows: Rows, role: Role) -> Rows:
        unknown: Any = rows.ids
        return role.one(hf.queue(unknown, lag=1, late="wait"))

    assert [finding.code for finding in flow.check().findings] == ["HF206"]


def test_a_value_that_goes_around_a_queue_has_no_stage() -> None:
    @hf.dataflow
    def flow(rows: Rows, role: Role) -> Rows:
        first = role.one(rows)
        return role.two(hf.queue(first, lag=1, late="wait"), role.one(first))

    with pytest.raises(WiringError) as error:
        stages(flow.trace())
    assert error.value.code == "HF742"
    assert [finding.code for finding in flow.check().findings] == ["HF742"]


def through_another(rows: Rows, role: Role) -> Rows:
    """Its first stage feeds the queue between the queues, and that one feeds the first stage."""
    first = role.one(rows)
    through = hf.queue(hf.queue(first, lag=1, late="wait"), lag=1, late="wait")
    return role.two(through, first)


def through_each_other(rows: Rows, others: Rows, role: Role) -> tuple[Rows, Rows]:
    """Each of two stages feeds the other one."""
    first, second = role.one(rows), role.one(others)
    left = role.two(hf.queue(second, lag=1, late="wait"), first)
    return left, role.two(hf.queue(first, lag=1, late="wait"), second)


@pytest.mark.parametrize("program", [through_another, through_each_other])
def test_stages_that_feed_each_other_are_refused(program: Any) -> None:
    flow = hf.dataflow(program)
    with pytest.raises(WiringError) as error:
        stages(flow.trace())
    assert error.value.code == "HF742"
    assert {finding.code for finding in flow.check().findings} == {"HF742"}


CHOICES = strategies.lists(
    strategies.tuples(strategies.integers(0, 2), strategies.integers(0, 40), strategies.integers(0, 40)), max_size=12
)


def drawn(choices: list[tuple[int, int, int]]) -> Graph:
    """A program of calls of one and of two arguments, and queues."""

    @hf.dataflow
    def flow(first: Rows, second: Rows, role: Role) -> tuple[Rows, ...]:
        values = [first, second]
        for kind, left, right in choices:
            one, other = values[left % len(values)], values[right % len(values)]
            match kind:
                case 0:
                    values.append(role.one(one))
                case 1:
                    values.append(role.two(one, other))
                case _:
                    values.append(hf.queue(one, lag=1, late="wait"))
        return tuple(values)

    return flow.trace()


@given(CHOICES)
@example([(2, 0, 0), (2, 2, 0), (1, 3, 0)])  # through another: first, second, queue, queue of it, two(it, first)
@example([(0, 1, 0), (2, 2, 0), (2, 0, 0), (2, 4, 0), (1, 5, 3)])  # a stage that gets deeper after what it feeds
@example([(2, 1, 0), (1, 2, 0), (2, 0, 0), (1, 4, 1)])  # two stages that feed each other
def test_stages_are_connected_components_and_only_queues_are_between_them(choices: list[tuple[int, int, int]]) -> None:
    graph = drawn(choices)
    edges = [(ref.node, node.id) for node in graph.nodes for ref in node.refs if not isinstance(node.op, Queue)]
    components: Any = nx.Graph(edges)
    components.add_nodes_from(range(len(graph.nodes)))
    part = {node: number for number, nodes in enumerate(nx.connected_components(components)) for node in nodes}
    queues = [node for node in graph.nodes if isinstance(node.op, Queue)]
    feeds: Any = nx.DiGraph([(part[ref.node], part[q.id]) for q in queues for ref in q.refs])
    cycles = [set(members) for members in nx.strongly_connected_components(feeds)]
    itself = {q.id for q in queues if any(part[ref.node] == part[q.id] for ref in q.refs)}
    on_a_cycle = {
        q.id for q in queues if any({part[ref.node], part[q.id]} <= members for members in cycles for ref in q.refs)
    }
    parts = split(graph)
    assert itself <= {ends.queue.id for ends in parts.around} <= on_a_cycle
    assert bool(parts.around) == bool(on_a_cycle)
    if on_a_cycle:
        for each in parts.around:
            behind = nx.descendants(nx.DiGraph([(r.node, n.id) for n in graph.nodes for r in n.refs]), each.queue.id)
            assert each.reader.id in behind
            assert each.value.id not in behind | {each.queue.id}
            assert each.value.id in {ref.node for ref in each.reader.refs}
        return
    ends = {part[node] for q in queues for node in (q.id, *(ref.node for ref in q.refs))}
    for left, right in edges:
        assert parts.of[left] == parts.of[right]
    for left in range(len(graph.nodes)):
        for right in range(len(graph.nodes)):
            if part[left] in ends and part[right] in ends:
                assert (part[left] == part[right]) == (parts.of[left] == parts.of[right])
    for q in queues:
        assert all(parts.of[ref.node] < parts.of[q.id] for ref in q.refs)


@given(CHOICES)
def test_stages_together_are_the_program(choices: list[tuple[int, int, int]]) -> None:
    graph = drawn(choices)
    if split(graph).around:
        return
    made = stages(graph)
    assert sorted(node for stage in made for node in stage.nodes) == [node.id for node in graph.nodes]
    assert sorted(name for stage in made for name in stage.inputs) == ["first", "second"]
    assert sorted(ref.node for stage in made for ref in stage.results) == sorted(r.node for r in graph.output.refs())
    queues = sorted(node.id for node in graph.nodes if isinstance(node.op, Queue))
    assert sorted(q for stage in made for q in stage.reads.values()) == queues
    assert sorted(q for stage in made for q in stage.feeds.values()) == queues
    for stage in made:
        for node, number in zip(stage.graph.nodes, stage.nodes, strict=True):
            before = graph.nodes[number]
            if isinstance(before.op, Queue):
                assert isinstance(node.op, Input)
                assert stage.reads[node.op.name] == number
                continue
            assert node.op == before.op
            moved = [(port, stage.nodes[ref.node]) for port, ref in node.arguments if isinstance(ref, Ref)]
            assert moved == [(port, ref.node) for port, ref in before.arguments if isinstance(ref, Ref)]
