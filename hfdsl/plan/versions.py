"""Versions: how old the states behind the values of a step may be, as plans print and draw it.

A worked example, with ``lag=4``; the version of actor's policy is v when stage 1 reads it::

    rollout = engine.generate(prompts)                  # stage 0
    scores  = reward.score(rollout)                     # stage 0: reads rollout, made under policy@v
    batch   = hf.queue(hf.merge(Scored, rollout, scores), lag=4, late="wait")
    now     = actor.log_probs(batch)                    # stage 1: reads rollout, policy@[v-4, v]
    actor.update(batch, now)                            # stage 1: rollout and scores, and what comes of them

A value has the lag of its call; each queue on the way from there to a reader adds its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hfdsl.graph.lags import lags
from hfdsl.graph.program import Derived, Graph, Node, Queue, RoleCall
from hfdsl.graph.stages import HeldState, Split, effects


def read_lags(graph: Graph, split: Split) -> Mapping[tuple[int, int], Mapping[HeldState, int]]:
    """By the node of a stored value and that of a reader: the worst lag of each state that it was made under.

    Values of the present version are left out.
    """
    if not split.queues:
        return {}
    by_value, by_edge = lags(graph), dict[tuple[int, int], Mapping[HeldState, int]]()
    for reader in graph.nodes:
        if not isinstance(reader.op, Derived):
            for source, through in _sources(graph, reader, 0):
                earlier = by_edge.get((source.id, reader.id), {})
                late = {state: versions.lag + through for state, versions in by_value[source.id].items()}
                most = {state: max(lag, earlier.get(state, 0)) for state, lag in late.items() if lag}
                if most:
                    by_edge[source.id, reader.id] = most
    return by_edge


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """By node three stages: its own, the one that makes its rows, and the one whose steps count as versions.

    In the example above, ``engine.generate`` is dispatched in stage 0 when stage 1 has been submitted for steps 0 to 2,
    and the update that reads its rows when stage 1 has been for steps 0 to 6:

    >>> counts = VersionCounts(own=(0, 1), making=(0, 0), training=(1, 1))
    >>> counts.versions(0, 7, [[7, 3], []]), counts.versions(1, 7, [[7, 3], [11, 7]])
    ((3, 3), (7, 3))
    """

    own: tuple[int, ...]
    making: tuple[int, ...]
    training: tuple[int, ...]

    def versions(self, node: int, step: int, stage_steps: Sequence[Sequence[int]]) -> tuple[int, int]:
        """The version under which a call of a node is dispatched, and the one under which its rows were made.

        ``stage_steps`` has for each stage how many steps of every stage had been submitted before it.
        """
        if not stage_steps:
            return step, step
        counted = self.training[node]
        return stage_steps[self.own[node]][counted], stage_steps[self.making[node]][counted]


def version_counts(graph: Graph, split: Split) -> VersionCounts:
    """The counting of the versions of nodes.

    A node that has no part in a trained state counts with the last stage that trains any, else with the last of all. Of
    several states that its rows were made under, the one that is trained last counts.
    """
    writers = {
        holder: split.of[node.id] for node in graph.calls for holder, effect in effects(node) if effect.kind == "writes"
    }
    last = max(writers.values(), default=split.count - 1)
    making, training = list(split.of), [last] * len(graph.nodes)
    for node, states in enumerate(lags(graph)):
        if states:
            state = max(states, key=lambda state: writers[state])
            making[node], training[node] = split.of[states[state].reader.id], writers[state]
    return VersionCounts(split.of, tuple(making), tuple(training))


def _sources(graph: Graph, reader: Node, through: int) -> Iterator[tuple[Node, int]]:
    """The stored values that a node reads, each with the lags of the queues on the way."""
    for ref in reader.refs:
        source = graph.nodes[ref.node]
        if not isinstance(source.op, Derived):
            yield source, through
            continue
        lag = (source.op.lag or 0) if isinstance(source.op, Queue) else 0
        yield from _sources(graph, source, through + lag)


def tokens_have_versions(graph: Graph, node: int) -> bool:
    """Whether a call takes weights between tokens, so that each token of its result has a version of its own."""
    op = graph.nodes[node].op
    loads = (call.op for call in graph.calls if isinstance(call.op, RoleCall))
    return isinstance(op, RoleCall) and (op.role, op.signature.name) in {(load.role, load.during) for load in loads}


def versions_text(states: Mapping[HeldState, int], each_token: bool = False) -> str:
    """As plans show it; ``each_token`` has versions of its own where a call takes weights in flight.

    >>> versions_text({HeldState("actor", "policy"): 4})
    'policy@[v-4, v]'
    >>> versions_text({HeldState("left", "policy"): 1, HeldState("right", "policy"): 1})
    'left.policy@[v-1, v], right.policy@[v-1, v]'
    >>> versions_text({HeldState("actor", "policy"): 4}, each_token=True)
    'policy@[v-4, v] per token'
    """
    names, unit = [state.state for state in states], " per token" if each_token else ""
    return ", ".join(
        f"{state.state if names.count(state.state) == 1 else f'{state.role}.{state.state}'}@[v-{lag}, v]{unit}"
        for state, lag in states.items()
    )
