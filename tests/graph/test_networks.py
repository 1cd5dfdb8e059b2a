"""A traced dataflow as a graph of networkx: nothing is lost, and equal programs are isomorphic."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import PackageError
from hfdsl.graph.program import Constant, FunctionCall, Graph, Ref, RoleCall
from hfdsl.graph.signatures import RecordType
from hfdsl.rl.dataflows.asynchronous import async_grpo
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.testing.strategies.graphs import Program, graphs
from hfdsl.types.batches import schema
from tests.nightly import examples

many = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def network(program: Program) -> Any:
    return program.load()["program"].trace().to_networkx()


def content(network: Any) -> tuple[Any, ...]:
    """All that a network says."""
    attributes = {name: value for name, value in network.graph.items() if not name.endswith("_default")}  # of GraphML
    return attributes, dict(network.nodes(data=True)), sorted(network.edges(keys=True, data=True), key=str)


def through_graphml(network: Any) -> Any:
    file = io.BytesIO()
    nx.write_graphml(network, file)
    file.seek(0)
    return nx.read_graphml(file, force_multigraph=True)


# -- nothing is lost


def held_against(graph: Graph, network: Any) -> None:
    """Read a graph node by node, and find every part of it in its network."""
    names = {attributes["number"]: name for name, attributes in network.nodes(data=True) if "number" in attributes}
    assert sorted(names) == [node.id for node in graph.nodes]
    for node in graph.nodes:
        attributes = network.nodes[names[node.id]]
        assert (attributes["label"], attributes["line"]) == (node.label, node.span.line)
        match node.op:
            case RoleCall(role=role, signature=signature):
                declared = signature.registration
                assert declared is not None
                shown = [attributes[name] for name in ("kind", "role", "method", "protocol")]
                assert shown == ["call", role, signature.name, declared.name]
            case FunctionCall(signature=signature):
                assert (attributes["kind"], attributes["label"]) == ("function", signature.name)
        if isinstance(node.result, RecordType):
            columns, dtypes, shapes = (attributes[name].split("; ") for name in ("columns", "dtypes", "shapes"))
            assert columns == list(schema(node.result.record).fields)
            assert len(dtypes) == len(shapes) == len(columns)
        constants = {name for name, operand in node.arguments if isinstance(operand, Constant)}
        assert {name.removeprefix("constant_") for name in attributes if name.startswith("constant_")} == constants
    reads = {(names[operand.node], names[node.id], port) for node in graph.nodes
             for port, operand in node.arguments if isinstance(operand, Ref)}  # fmt: skip
    results = {(u, v, key) for u, v, key in network.edges(keys=True) if network.nodes[v]["kind"] == "result"}
    assert set(network.edges(keys=True)) == reads | results
    assert Counter(names[ref.node] for ref in graph.output.refs()) == Counter(u for u, _, _ in results)


@many
@given(graphs(max_nodes=8))
def test_a_network_has_all_of_its_graph(program: Program) -> None:
    graph = program.load()["program"].trace()
    held_against(graph, graph.to_networkx())


@pytest.mark.parametrize("flow", [grpo, async_grpo])
def test_a_network_of_a_ready_dataflow_has_all_of_its_graph(flow: hf.Dataflow[..., Any]) -> None:
    held_against(flow.trace(), flow.trace().to_networkx())


@many
@given(graphs(max_nodes=8))
def test_formats_of_networkx_give_back_what_was_written(program: Program) -> None:
    original = network(program)
    assert content(through_graphml(original)) == content(original)
    text = json.dumps(nx.node_link_data(original, edges="edges"))
    assert content(nx.node_link_graph(json.loads(text), edges="edges")) == content(original)


# -- isomorphism

LABELS = ("kind", "role", "method", "protocol", "type", "shapes", "operation", "constant_scale", "take_rows", "label")


def same_node(first: dict[str, Any], second: dict[str, Any]) -> bool:
    if first["kind"] == second["kind"] == "result":
        return True  # its place among the results is not a part of the computation
    return all(first.get(name) == second.get(name) for name in LABELS)


def same_edges(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first == second  # by port


def isomorphic(first: Any, second: Any) -> bool:
    return bool(nx.is_isomorphic(first, second, node_match=same_node, edge_match=same_edges))


def reordered(program: Program, random: Random) -> Program:
    """The same lines in another order, under other names."""
    used = [set(map(int, re.findall(r"\bv(\d+)", line.text))) for line in program.lines]
    remaining, order = list(range(1, len(program.lines) + 1)), list[int]()
    while remaining:
        order.append(random.choice([number for number in remaining if used[number - 1] <= set(order)]))
        remaining.remove(order[-1])
    new = {number: place for place, number in enumerate(order, 1)}
    renamed = [
        replace(line, text=re.sub(r"\bv(\d+)", lambda match: f"v{new[int(match[1])]}", line.text))
        for line in (program.lines[number - 1] for number in order)
    ]
    return replace(program, lines=tuple(renamed))


@many
@given(graphs(max_nodes=8), st.integers(0, 10**6))
def test_the_order_of_lines_makes_isomorphic_networks(program: Program, seed: int) -> None:
    assert isomorphic(network(program), network(reordered(program, Random(seed))))


@many
@given(graphs(max_nodes=8), st.data())
def test_another_argument_makes_another_network(program: Program, data: st.DataObject) -> None:
    scored = [i for i, line in enumerate(program.lines) if line.kind == "SampleRollout"]
    rollout = data.draw(st.sampled_from(scored))
    line = replace(program.lines[0], text=f"judge.score(v{rollout + 1}, scale=0.5)", kind="SampleScores")
    first = replace(program, lines=(*program.lines, line))
    second = replace(program, lines=(*program.lines, replace(line, text=line.text.replace("0.5", "0.25"))))
    assert isomorphic(network(first), network(first))
    assert not isomorphic(network(first), network(second))


# -- names and attributes


class B(hf.Dim): ...


class K(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B, K]
    text: hf.Obj[str, B]
    hint: hf.i64[B, hf.Ragged[K]] | None = None


class Role(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def work(self, rows: Rows, style: str = "") -> Rows:
        return rows

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def vote(self, rows: Rows) -> Rows:
        return rows


@hf.dataflow
def flow(result: Rows, role: Role) -> dict[str, Any]:
    kept = hf.take(hf.repeat(result, 4), 2)
    return {"kept": role.work(kept, style="<b>\0</b>"), "": role.vote(kept)}


def test_attributes_are_plain_values() -> None:
    nodes = flow.trace().to_networkx().nodes
    assert nodes["repeat"] == {
        "label": "repeat",
        "number": 1,
        "kind": "operation",
        "operation": "repeat",
        "repeat_times": 4,
        "file": __file__,
        "line": nodes["repeat"]["line"],
        "type": "Rows",
        "rows": "B*4",
        "columns": "x; text; hint",
        "dtypes": "f32; Obj[str]; i64",
        "shapes": "B*4, K; B*4; B*4, ~K",
        "optional": "hint",
    }
    assert nodes["role.work"]["constant_style"] == r"'<b>\x00</b>'"  # XML has no zero
    assert nodes["role.vote"]["type"] == "PerRank[Rows]"


def test_a_result_has_a_name_that_no_node_has() -> None:
    @hf.dataflow
    def identity(result: Rows, role: Role) -> Rows:
        return role.work(result)

    assert set(identity.trace().to_networkx()) == {"result", "role.work", "result'"}
    assert {name for name, kind in flow.trace().to_networkx().nodes(data="kind") if kind == "result"} == {
        *("kept", "result'")
    }


def test_a_graph_with_mistakes_has_a_network_too() -> None:
    @hf.dataflow
    def mistaken(rows: Rows, role: Role) -> Rows:
        return role.work(role.vote(rows).nothing)  # type: ignore[attr-defined]

    assert mistaken.trace().misuses
    assert "role.vote" in mistaken.trace().to_networkx()


def test_without_networkx_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(PackageError, match=r"HF990: .*pip install 'hfdsl\[graph\]'"):
        flow.trace().to_networkx()
