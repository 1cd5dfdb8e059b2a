"""Timed marked graphs: can a program of stages run forever, how fast, and what limits it?

A node takes seconds; an edge holds tokens. A node starts when every edge into it has a token, takes one from each, and
puts one on each edge out of it when it ends. A worked example: rollouts of 41 s, updates of 18 s, and a lag of k::

    rollout -> train              0 tokens: an update waits for its batch
    train   -> rollout        k + 1 tokens: batch n may be dispatched when n - k updates are done
    rollout -> rollout            2 tokens: two dispatches at once
    train   -> train              1 token:  one update after another

    cycle                     seconds / tokens
    rollout, train            59 / (k + 1): 59, 29.5, 19.7, 14.8 for k = 0, 1, 2, 3
    rollout                   41 / 2 = 20.5
    train                     18 / 1 = 18

So an update takes at least 20.5 s from k = 2 on, and more lag gains nothing.

Why it is right. The tokens on a cycle never change in number, since each of its nodes takes one and puts one back. A
cycle without tokens never starts (Commoner et al., 1971, Marked Directed Graphs), and all others keep going. A cycle
with t tokens makes at most t rounds in the seconds of its nodes, and the slowest cycle sets the pace of what it is
connected to (Reiter, 1968, Scheduling Parallel Computations): seconds per update >= max seconds / tokens over cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class TokenEdge(NamedTuple):
    """An edge between two nodes, with the tokens that it holds at the start."""

    source: str
    target: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle: its nodes in order, their seconds, and the tokens on it."""

    nodes: tuple[str, ...]
    seconds: float
    tokens: int

    @property
    def ratio(self) -> float:
        """Seconds for each round."""
        return self.seconds / self.tokens

    def __str__(self) -> str:
        tokens = f" / {self.tokens} tokens = {self.ratio:.3g} s" if self.tokens > 1 else ""
        return f"{' + '.join(self.nodes)} {self.seconds:.3g} s{tokens}"


@dataclass(frozen=True)
class MarkedGraph:
    """Nodes with the seconds that each takes, and edges with tokens.

    >>> pipeline = MarkedGraph({"rollout": 41, "train": 18}, (
    ...     TokenEdge("rollout", "train", 0), TokenEdge("train", "rollout", 3),
    ...     TokenEdge("rollout", "rollout", 2), TokenEdge("train", "train", 1),
    ... ))
    >>> print(pipeline.critical_cycle())
    rollout 41 s / 2 tokens = 20.5 s
    """

    seconds: Mapping[str, float]
    edges: tuple[TokenEdge, ...]

    def dead_cycle(self) -> tuple[str, ...] | None:
        """The nodes of a cycle without tokens, none of which can ever start; None if there is no such cycle."""
        after: dict[str, list[str]] = {node: [] for node in self.seconds}
        for source, target, tokens in self.edges:
            if tokens == 0:
                after[source].append(target)
        finished: set[str] = set()
        for start, first in after.items():
            path, untried = [start], [iter(first)]
            while untried and start not in finished:
                node = next(untried[-1], None)
                if node is None:
                    finished.add(path.pop())
                    untried.pop()
                elif node in path:
                    return tuple(path[path.index(node) :])
                elif node not in finished:
                    path.append(node)
                    untried.append(iter(after[node]))
        return None

    def critical_cycle(self) -> Cycle | None:
        """The cycle with the most seconds for each token, which bounds the speed; None if there is no cycle.

        Each round looks for a cycle that is slower than the slowest known one, by longest paths under the weights
        seconds - ratio * tokens: a positive sum is slower. There are finitely many, so that the last one is slowest.

        Raises:
            ValueError: where a cycle has no tokens.
        """
        if (dead := self.dead_cycle()) is not None:
            raise ValueError(f"no token is on the cycle {' -> '.join(dead)}")
        slowest: Cycle | None = None
        while (slower := self.slower_cycle(None if slowest is None else slowest.ratio)) is not None:
            slowest = slower
        return slowest

    def slower_cycle(self, bound: float | None) -> Cycle | None:
        """A cycle with more seconds a token than ``bound``, or any cycle without one (Bellman and Ford).

        Every cycle must have a token.
        """
        ratio = bound or 0.0
        tolerance = -1.0 if bound is None else 1e-9 * (1.0 + ratio)
        weights = [self.seconds[edge.source] - ratio * edge.tokens - tolerance for edge in self.edges]
        longest = dict.fromkeys(self.seconds, 0.0)
        into: dict[str, TokenEdge] = {}
        changed: str | None = None
        for _ in self.seconds:
            changed = None
            for edge, weight in zip(self.edges, weights, strict=True):
                if longest[edge.source] + weight > longest[edge.target]:
                    longest[edge.target], into[edge.target], changed = longest[edge.source] + weight, edge, edge.target
            if changed is None:
                return None
        if changed is None:
            return None
        for _ in self.seconds:  # back onto the cycle
            changed = into[changed].source
        cycle, node = [into[changed]], into[changed].source
        while node != changed:
            cycle.append(into[node])
            node = into[node].source
        return self._cycle(cycle[::-1])

    def _cycle(self, edges: Sequence[TokenEdge]) -> Cycle:
        nodes = [edge.source for edge in edges]
        first = min(range(len(nodes)), key=lambda position: nodes[position])
        order = (*nodes[first:], *nodes[:first])
        return Cycle(order, sum(self.seconds[node] for node in nodes), sum(edge.tokens for edge in edges))
