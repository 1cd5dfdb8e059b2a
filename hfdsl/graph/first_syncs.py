"""The transfer before the first dispatch of a stream: weights that its producers would get only by the first sync.

A worked example, in which a sampler has a copy of the weights that an actor trains::

    1  rollout = sampler.generate(prompts)          reads sampler's copy of the policy
    2  batch   = hf.queue(rollout, lag=2, ...)
    3  metrics = actor.update(batch)
    4  weights = actor.weights()                    hf.sync(actor, sampler)
    5  sampler.load(weights)

Steps 0, 1 and 2 are dispatched before node 5 has run once, and count as made under version 0 of the actor's policy.
They are, if nodes 4 and 5 run once before node 1: otherwise they come from what the sampler's constructor loaded.

A sync is among these if what it sends to is read by what feeds a queue, and if it needs nothing of a step: no rows of
the caller, and no call but exports and functions of them.
"""

from __future__ import annotations

from dataclasses import replace

from hfdsl.graph.ancestry import ancestors
from hfdsl.graph.program import FunctionCall, Graph, Node, Operand, Output, Ref, RoleCall
from hfdsl.graph.stages import effects, queues_of, syncs


def first_syncs(graph: Graph) -> Graph | None:
    """The program of the syncs before a first dispatch; None if there are none."""
    feeding = ancestors(graph, {node.id for node, _ in queues_of(graph)})
    read_states = {
        holder for node in feeding for holder, effect in effects(graph.nodes[node]) if effect.kind == "reads"
    }
    transfers = set[int]()
    for sync in syncs(graph):
        needed = ancestors(graph, {sync.load})
        if sync.target in read_states and all(_is_transfer(graph.nodes[node]) for node in needed):
            transfers |= needed
    if not transfers:
        return None
    new = {node: position for position, node in enumerate(sorted(transfers))}
    nodes = tuple(_renumbered(graph.nodes[node], new) for node in new)
    called = {node.op.role for node in nodes if isinstance(node.op, RoleCall)}
    return replace(
        graph,
        name=f"{graph.name}.first_sync",
        nodes=nodes,
        roles={name: role for name, role in graph.roles.items() if name in called},
        output=Output(()),
        misuses=(),
        optional_reads=(),
        inner_calls=(),
    )


def _is_transfer(node: Node) -> bool:
    """Whether a node exports weights, passes them on, or loads them."""
    if isinstance(node.op, RoleCall):
        kinds = {effect.kind for _, effect in effects(node)}
        return bool(kinds) and kinds <= {"exports", "loads"}
    return isinstance(node.op, FunctionCall)


def _renumbered(node: Node, new: dict[int, int]) -> Node:
    def moved(operand: Operand) -> Operand:
        return replace(operand, node=new[operand.node]) if isinstance(operand, Ref) else operand

    return replace(node, id=new[node.id], arguments=tuple((port, moved(operand)) for port, operand in node.arguments))
