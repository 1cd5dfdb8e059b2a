"""Lags of what steps read, against longest paths of networkx; and that plans show them."""

from __future__ import annotations

import networkx as nx
import pytest

from hfdsl.graph.program import Derived, Queue
from hfdsl.graph.stages import HeldState
from hfdsl.tools.draw import mermaid
from tests.rl.dataflows.programs import SIZES
from tests.rl.dataflows.test_asynchronous import FLOWS, placed
from tests.runtime.stage_programs import B, deciding, stage_deployment

POLICY = HeldState("actor", "policy")


@pytest.mark.parametrize("name", FLOWS)
def test_the_lag_of_a_value_is_the_longest_way_from_the_sampler(name: str) -> None:
    flow = FLOWS[name].given(lag=3)
    plan = flow.compile(placed(flow), SIZES)
    graph = nx.DiGraph()
    for node in plan.graph.nodes:
        weight = (node.op.lag or 0) if isinstance(node.op, Queue) else 0
        graph.add_edges_from(((ref.node, node.id) for ref in node.refs), weight=weight)
    [sampler] = [node.id for node in plan.graph.nodes if node.label == "sampler.generate"]
    stored = {node.id for node in plan.graph.nodes if not isinstance(node.op, Derived)}
    expected = {}
    for source in stored & {sampler, *nx.descendants(graph, sampler)}:
        for reader in stored & nx.descendants(graph, source):
            reads = [path for path in _paths(graph, source, reader) if stored.isdisjoint(path[1:-1])]
            ways = [[*before[:-1], *read] for before in _paths(graph, sampler, source) for read in reads]
            lag = max((nx.path_weight(graph, way, "weight") for way in ways), default=0)
            if lag:
                expected[source, reader] = {POLICY: lag}
    assert {ends: {POLICY: late[POLICY]} for ends, late in plan.read_lags.items()} == expected


def _paths(graph: nx.DiGraph, source: int, target: int) -> list[list[int]]:
    return [[source]] if source == target else list(nx.all_simple_paths(graph, source, target))


def test_plans_show_versions() -> None:
    flow = FLOWS["grpo"].given(lag=3)
    plan = flow.compile(placed(flow), SIZES)
    [line] = [line for line in str(plan).splitlines() if "actor.log_probs " in line and "<- sampler" in line]
    assert line.endswith("policy@[v-3, v]")
    assert "queue    from stage 0 -> 1: lag=3 wait, groups of 4" in str(plan)
    assert "policy@[v-3, v]" in mermaid(plan)
    assert "policy@" not in str(plan).partition("actor.log_probs")[0]


def test_plans_show_batches_of_another_size_and_that_stages_overlap() -> None:
    program = deciding.given(rows=6, group=2, lag=3)
    lines = str(program.compile(stage_deployment(), dims={B: 4})).splitlines()
    assert "queue    from stage 0 -> 1: lag=3 drop, groups of 2, batches of 6 rows" in lines
    assert "overlap  none, within a step; stages of several steps run side by side" in lines
