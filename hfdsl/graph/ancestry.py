"""The nodes that a value depends on, and those that depend on it; nodes refer to earlier ones, so one pass finds all.

>>> import hfdsl as hf
>>> class B(hf.Dim): ...
>>> class Rows(hf.Batch):
...     x: hf.f32[B]
>>> class Judge(hf.Worker):
...     @hf.register(hf.Dispatch.DP_PROTO)
...     def score(self, rows: Rows) -> Rows: ...
>>> @hf.dataflow
... def flow(rows: Rows, judge: Judge) -> tuple[Rows, Rows]:
...     return judge.score(judge.score(rows)), judge.score(rows)
>>> graph = flow.trace()  # 0 rows; 1 the inner call; 2 the outer one; 3 the last one
>>> sorted(ancestors(graph, [2])), sorted(descendants(graph, [1]))
([0, 1, 2], [1, 2])
"""

from __future__ import annotations

from collections.abc import Iterable

from hfdsl.graph.program import Graph


def ancestors(graph: Graph, nodes: Iterable[int]) -> set[int]:
    """These nodes, and all whose values they depend on."""
    reached = set(nodes)
    for node in reversed(graph.nodes):
        if node.id in reached:
            reached.update(ref.node for ref in node.refs)
    return reached


def descendants(graph: Graph, nodes: Iterable[int]) -> set[int]:
    """These nodes, and all that depend on their values."""
    reached = set(nodes)
    for node in graph.nodes if reached else ():
        if any(ref.node in reached for ref in node.refs):
            reached.add(node.id)
    return reached
