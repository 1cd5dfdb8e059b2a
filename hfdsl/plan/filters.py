"""Filters: which columns say what they keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hfdsl.graph.program import Filter, Graph, Node, Ref
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import number_of, rows_in


def masks(graph: Graph) -> Iterator[tuple[Node, Ref]]:
    """Every filter with the column by which it keeps rows."""
    for node in graph.nodes:
        keep = dict(node.arguments).get("keep")
        if isinstance(node.op, Filter) and isinstance(keep, Ref):
            yield node, keep


def all_kept(plan: Plan, sizes: Mapping[Any, int]) -> dict[int, tuple[int, ...]]:
    """The rows that every filter keeps where it drops none: the most that can move."""
    known, kept = dict(sizes), {}
    for node, value in zip(plan.graph.nodes, plan.inference.values, strict=True):
        if isinstance(node.op, Filter) and node.batch is not None:
            rows = number_of(node, rows_in(plan.inference.values[node.batch.node]), known)
            if rows is not None:
                kept[node.id] = tuple(range(rows))
                size = rows_in(value)
                known |= dict.fromkeys(size.atoms if size else (), rows // node.op.group)
    return kept
