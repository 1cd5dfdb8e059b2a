"""Timed marked graphs, held against networkx: every simple cycle is enumerated there."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import example, given, strategies

from hfdsl.plan.marked_graph import MarkedGraph, TokenEdge

NODES = "abcdef"

EDGES = strategies.lists(
    strategies.builds(
        TokenEdge, strategies.sampled_from(NODES), strategies.sampled_from(NODES), strategies.integers(0, 3)
    ),
    max_size=12,
    unique_by=lambda edge: edge[:2],
)
SECONDS = strategies.fixed_dictionaries({node: strategies.integers(0, 60) for node in NODES})


def cycles(graph: MarkedGraph) -> list[tuple[list[str], int]]:
    """Every simple cycle with its tokens."""
    edges = nx.DiGraph()
    edges.add_nodes_from(graph.seconds)
    edges.add_weighted_edges_from(graph.edges)
    return [
        (cycle, sum(edges[left][right]["weight"] for left, right in zip(cycle, [*cycle[1:], cycle[0]], strict=True)))
        for cycle in nx.simple_cycles(edges)
    ]


@given(SECONDS, EDGES)
def test_a_graph_is_live_where_every_cycle_holds_a_token(seconds: dict[str, float], edges: list[TokenEdge]) -> None:
    graph = MarkedGraph(seconds, tuple(edges))
    dead = [set(cycle) for cycle, tokens in cycles(graph) if not tokens]
    cycle = graph.dead_cycle()
    assert (cycle is None) == (not dead)
    if cycle is not None:
        assert set(cycle) in dead


TWO_CYCLES = [
    *(TokenEdge("a", "b", 0), TokenEdge("a", "d", 2), TokenEdge("b", "f", 1), TokenEdge("d", "a", 0)),
    *(TokenEdge("d", "b", 0), TokenEdge("f", "a", 0), TokenEdge("f", "d", 0)),
]
"""Edges with two cycles over the same nodes: a b f d with 1 token, and d b f a with 3."""


@given(SECONDS, EDGES)
@example({node: int(node in "ad") for node in NODES}, TWO_CYCLES)
def test_the_critical_cycle_is_the_slowest_of_all(seconds: dict[str, float], edges: list[TokenEdge]) -> None:
    graph = MarkedGraph(seconds, tuple(edges))
    if graph.dead_cycle() is not None:
        with pytest.raises(ValueError, match="no token"):
            graph.critical_cycle()
        return
    ratios = {  # several cycles may have the same nodes
        (frozenset(cycle), Fraction(int(sum(seconds[node] for node in cycle)), tokens))
        for cycle, tokens in cycles(graph)
    }
    slowest = graph.critical_cycle()
    assert (slowest is None) == (not ratios)
    if slowest is not None:
        assert slowest.ratio == pytest.approx(float(max(ratio for _, ratio in ratios)), rel=1e-6, abs=1e-6)
        assert (frozenset(slowest.nodes), Fraction(int(slowest.seconds), slowest.tokens)) in ratios
