"""Ancestors and descendants of nodes, held against networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
from hypothesis import given, strategies

from hfdsl.graph.ancestry import ancestors, descendants
from tests.graph.test_stages import CHOICES, drawn


@given(CHOICES, strategies.sets(strategies.integers(0, 40), max_size=3))
def test_ancestors_and_descendants_are_those_of_networkx(choices: list[tuple[int, int, int]], picked: set[int]) -> None:
    graph = drawn(choices)
    nodes = {number % len(graph.nodes) for number in picked}
    edges: Any = nx.DiGraph([(ref.node, node.id) for node in graph.nodes for ref in node.refs])
    edges.add_nodes_from(range(len(graph.nodes)))
    assert ancestors(graph, nodes) == nodes.union(*(nx.ancestors(edges, node) for node in nodes))
    assert descendants(graph, nodes) == nodes.union(*(nx.descendants(edges, node) for node in nodes))
