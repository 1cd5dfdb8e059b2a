"""Versions: how old the states may be that the values of a step were made under, as plans print and draw it.

A worked example, with ``lag=4``; the version of actor's policy is v when stage 1 reads it::

    rollout = engine.generate(prompts)                  # stage 0
    scores  = reward.score(rollout)                     # stage 0: reads rollout, made under policy@v
    batch   = hf.queue(hf.merge(Scored, rollout, scores), lag=4, late="wait")
    now     = actor.log_probs(batch)                    # stage 1: reads rollout, policy@[v-4, v]
    actor.update(batch, now)                            # stage 1: rollout and scores, and what comes of them

A value has the lag of its call; each queue on the way from there to a reader adds its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hfdsl.graph.lags import lags
from hfdsl.graph.program import Derived, Graph, Node, Queue
from hfdsl.graph.stages import HeldState, Split


def read_lags(graph: Graph, split: Split) -> Mapping[tuple[int, int], Mapping[HeldState, int]]:
    """By the node of a stored value and that of a reader: the worst lag of each state that it was made under.

    Values of the present version are left out.
    """
    if not split.queues:
        return {}
    made, found = lags(graph), dict[tuple[int, int], Mapping[HeldState, int]]()
    for reader in graph.nodes:
        if not isinstance(reader.op, Derived):
            for source, through in _sources(graph, reader, 0):
                known = found.get((source.id, reader.id), {})
                late = {state: versions.lag + through for state, versions in made[source.id].items()}
                most = {state: max(lag, known.get(state, 0)) for state, lag in late.items() if lag}
                if most:
                    found[source.id, reader.id] = most
    return found


def _sources(graph: Graph, reader: Node, through: int) -> Iterator[tuple[Node, int]]:
    """The stored values that a node reads, each with the lags of the queues on the way."""
    for ref in reader.refs:
        source = graph.nodes[ref.node]
        if not isinstance(source.op, Derived):
            yield source, through
            continue
        lag = (source.op.lag or 0) if isinstance(source.op, Queue) else 0
        yield from _sources(graph, source, through + lag)


def versions_text(states: Mapping[HeldState, int]) -> str:
    """As plans show it.

    >>> versions_text({HeldState("actor", "policy"): 4})
    'policy@[v-4, v]'
    >>> versions_text({HeldState("left", "policy"): 1, HeldState("right", "policy"): 1})
    'left.policy@[v-1, v], right.policy@[v-1, v]'
    """
    names = [state.state for state in states]
    return ", ".join(
        f"{state.state if names.count(state.state) == 1 else f'{state.role}.{state.state}'}@[v-{lag}, v]"
        for state, lag in states.items()
    )
