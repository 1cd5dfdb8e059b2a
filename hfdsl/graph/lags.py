"""Lags: by how many updates the policy that sampled the rows of a queue may be older than their reader's.

A worked example, an engine that has a copy of the weights that ``actor`` trains::

    rollout = engine.generate(prompts)                    # reads engine's copy of actor.policy
    batch   = hf.queue(rollout, lag=2, late="wait")       # actor.policy: 2
    judged  = judge.score(batch)                          # reads judge's own weights, which nothing trains
    final   = hf.queue(judged, lag=1, late="wait")        # actor.policy: 2 + 1

A queue counts the updates from the dispatch of a row by the stage that feeds it to the update that the row is in, or
to the dispatch of the stage that reads it. So along a way through several queues the bounds add up, and of several
ways the longest counts. A state that nothing trains has no updates, and no lag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfdsl.graph.program import Graph, Node
from hfdsl.graph.stages import HeldState, Split, effects, queues_of, syncs


@dataclass(frozen=True, slots=True)
class Versions:
    """A state that a value was made under: the call that read it, and by how many updates it may be behind."""

    reader: Node
    lag: int


def lags(graph: Graph) -> tuple[Mapping[HeldState, Versions], ...]:
    """By node the trained states that its value was made under, with the worst lag of each when it is read.

    States are those of the roles that train them, and not of those that have a copy. Without queues all lags are 0.
    """
    queues, sources = {node.id: queue for node, queue in queues_of(graph)}, trained_sources(graph)
    by_node: list[Mapping[HeldState, Versions]] = []
    for node in graph.nodes:
        versions: dict[HeldState, Versions] = {}
        behind = [by_node[ref.node].items() for ref in node.refs]
        for state, candidate in [item for items in behind for item in items]:
            if state not in versions or versions[state].lag < candidate.lag:
                versions[state] = candidate
        for holder, effect in effects(node):
            for state in sources.get(holder, ()) if effect.kind == "reads" else ():
                versions.setdefault(state, Versions(node, 0))
        if node.id in queues:
            lag = queues[node.id].lag or 0
            versions = {state: Versions(version.reader, version.lag + lag) for state, version in versions.items()}
        by_node.append(versions)
    return tuple(by_node)


def stage_lags(split: Split) -> Mapping[tuple[int, int], int]:
    """By stage and a stage behind it: by how many steps the first may be ahead before it steps.

    Rows that pass the queues between them are as many updates late at most.
    """
    ahead: dict[tuple[int, int], int] = {}
    # Stages have higher numbers than those that feed them.
    for node, queue in sorted(split.queues, key=lambda item: split.of[item[0].id]):
        feeds, reads = split.producer(node), split.of[node.id]
        paths = [(feeds, 0), *((first, lag) for (first, last), lag in ahead.items() if last == feeds)]
        for first, lag in paths:
            ahead[first, reads] = max(ahead.get((first, reads), 0), lag + (queue.lag or 0))
    return ahead


def trained_sources(graph: Graph) -> Mapping[HeldState, frozenset[HeldState]]:
    """By state of a role the trained states that it is, or is a copy of."""
    trained = {holder for node in graph.calls for holder, effect in effects(node) if effect.kind == "writes"}
    links = syncs(graph)
    sources = {holder: frozenset({holder}) for holder in trained}
    for _ in links:  # a copy of a copy is as many syncs away, at most
        for sync in links:
            if sync.target not in trained:
                sources[sync.target] = sources.get(sync.target, frozenset()) | sources.get(sync.source, frozenset())
    return sources


def carried(split: Split, stage: int, versions: tuple[Mapping[HeldState, Versions], ...]) -> Iterator[
    tuple[Node, HeldState]
]:  # fmt: skip  # a long type
    """The queues that a stage reads, each with every trained state that its rows were made under."""
    for node, _ in split.queues:
        if split.of[node.id] == stage:
            for state in versions[node.id]:
                yield node, state
