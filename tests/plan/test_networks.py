"""A plan as a graph of networkx: every edge with its bytes, every step with its place and its seconds."""

from __future__ import annotations

import io
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings

import hfdsl as hf
from hfdsl.errors import WiringError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.predict import Duration, predict
from hfdsl.plan.timeline import Interval, Timeline
from tests.nightly import examples
from tests.plan.oracle import B, Program, R, Rows, programs


def compiled(program: Program) -> CompiledPlan:
    return program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2})


def held_against(plan: CompiledPlan, network: Any) -> None:
    """Find every step and edge of a plan in its network, and nothing else."""
    names = {attributes["number"]: name for name, attributes in network.nodes(data=True) if "number" in attributes}
    assert sorted(names) == sorted([node.id for node in plan.graph.inputs] + [step.node for step in plan.steps])
    for step in plan.steps:
        attributes = network.nodes[names[step.node]]
        assert attributes["ranks"].split("; ") == [str(rank) for rank in step.ranks]
        assert (attributes["stage"], attributes["chunks"]) == (step.level, step.chunks)
        if step.group != DRIVER:
            [group] = [group for group in plan.groups if group.name == step.group]
            assert (attributes["group"], attributes["pool"]) == (group.name, group.pool.name)
        if step.role is not None:
            assert (attributes["role"], attributes["mesh"]) == (step.role, str(plan.mesh(step.role)))
    within = {(u, v): data for u, v, data in network.edges(data=True) if network.nodes[v]["kind"] != "result"}
    assert set(within) == {(names[edge.source], names[edge.target]) for edge in plan.edges}
    for edge in plan.edges:
        attributes = within[names[edge.source], names[edge.target]]
        assert attributes.get("bytes") == edge.bytes
        assert attributes.get("moved") == edge.moved
        assert attributes["transport"] == edge.transport
        assert attributes.get("columns", "").split("; ") == [*edge.columns]


@settings(max_examples=examples(60))
@given(programs())
def test_a_network_has_all_of_its_plan(program: Program) -> None:
    plan = compiled(program)
    network = plan.to_networkx()
    held_against(plan, network)
    assert nx.is_directed_acyclic_graph(network)
    file = io.BytesIO()
    nx.write_graphml(network, file)
    file.seek(0)
    again = nx.read_graphml(file)
    assert dict(again.nodes(data=True)) == dict(network.nodes(data=True))
    assert {(u, v): data for u, v, data in again.edges(data=True)} == {
        (u, v): data for u, v, data in network.edges(data=True)
    }


@settings(max_examples=examples(40))
@given(programs())
def test_a_timeline_gives_every_step_its_seconds(program: Program) -> None:
    plan = compiled(program)
    timeline = predict(plan, {step.label: Duration(1.0 + step.node) for step in plan.steps}).timeline
    network = plan.to_networkx(timeline)
    timed = {name: attributes for name, attributes in network.nodes(data=True) if "seconds" in attributes}
    assert set(timed) == {name for name, kind in network.nodes(data="kind") if kind in ("call", "function")}
    for step in plan.steps:
        [attributes] = [attributes for attributes in timed.values() if attributes["number"] == step.node]
        start, stop = timeline.nodes[step.label]
        assert (attributes["start"], attributes["seconds"]) == (start, stop - start)


class Role(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def work(self, rows: Rows) -> Rows:
        return rows


@hf.dataflow
def flow(rows: Rows, role: Role) -> Rows:
    return role.work(role.work(rows))


def test_a_timeline_of_another_plan_is_refused() -> None:
    plan = flow.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2]))), dims={B: 4, R: 2})
    step = Timeline("other", 3, 0.0, 1.0, (Interval(("pool", 0), "call", "role.wrok#1", 0.0, 1.0),))
    with pytest.raises(WiringError, match=r"HF991: .* 'other' has a step 'role.wrok#1', .* did you mean 'role.work#1'"):
        plan.to_networkx(step)


def test_a_plan_prints_in_a_line() -> None:
    plan = flow.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2]))), dims={B: 4, R: 2})
    assert repr(plan) == "<plan of 'flow': 2 steps, B=4 R=2>"
    assert repr(plan.graph) == "<graph of 'flow': 3 nodes, 2 of them calls>"
