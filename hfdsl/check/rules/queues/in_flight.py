"""In-flight syncs: can the calls of a role take new weights between two tokens?

A worked example::

    rollout = engine.generate(prompts)                      # stage 0: tokens of policy@w, then of policy@w+1, ...
    batch   = hf.queue(rollout, lag=4, late="wait")
    metrics = actor.update(batch)                           # stage 1: makes policy@v+1
    hf.sync(actor, engine, during="generate")               # arrives while stage 0 generates

A call of ``generate`` that is dispatched under version w begins with the weights of version w or newer ones, and
versions only grow from token to token. So the oldest version in its rows is that of their first token, at least w, and
so v - w <= lag bounds the staleness of every token. This requires that each rank takes weights for itself alone: ranks
that generate one token together would have to take them at the same token.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.stages import effects
from hfdsl.protocols import role_facts
from hfdsl.protocols.state import not_in_flight

ONCE = "keep one of both"
BETWEEN_CALLS = "leave out during=: hf.sync sends the weights between two calls"
AFTER_UPDATES = "call hf.sync after all updates of the step"


def roles_take_weights_in_flight(context: Context) -> Iterator[Finding]:
    """HF753: what takes weights between tokens declares that it can, and does so on every rank for itself."""
    for node in context.program.graph.calls:
        if isinstance(node.op, RoleCall) and node.op.during is not None:
            why, labels = _obstacle(context, node, node.op, node.op.during)
            advice = BETWEEN_CALLS
            if why is None and context.program.split.queues:
                why, advice = _missing_update(context, node), AFTER_UPDATES
                if why is None and (other := _between_calls(context, node)) is not None:
                    why, advice = "another hf.sync loads the same weights between its calls", ONCE
                    labels = (Label(other.span, "loads them between calls"),)
            if why is not None:
                yield Finding(
                    "HF753",
                    f"role '{node.op.role}' cannot take weights during '{node.op.during}': {why}",
                    Label(node.span, "sends weights in flight"),
                    labels,
                    notes=(advice,),
                )


def _obstacle(context: Context, load: Node, op: RoleCall, during: str) -> tuple[str | None, tuple[Label, ...]]:
    """Why a role cannot take weights in flight, if so, and what else shows it."""
    program, signature = context.program, signature_of(load)
    why = not_in_flight(program.graph.roles[op.role], op.signature.name, during)
    if why is not None:
        return why, () if signature is None else (Label(signature.span, "loads the weights"),)
    calls = [
        node
        for node in program.graph.calls
        if isinstance(node.op, RoleCall) and (node.op.role, node.op.signature.name) == (op.role, during)
    ]
    for call in _readers(context, op.role) if program.split.queues else ():
        if program.split.of[call.id] == program.split.of[load.id]:
            return f"'{call.label}' is in the stage that sends them", (Label(call.span, "may come before them"),)
    place = program.placement(load)
    if place is None:
        return None, ()
    why = role_facts.in_flight_obstacle.of(place)
    if why is not None:
        return why, ()
    for call in calls:
        protocol = call.op.signature.registration if isinstance(call.op, RoleCall) else None
        chunks = () if protocol is None or protocol.protocol is None else protocol.protocol.chunk_of(place.mesh)
        if len(set(chunks)) < len(chunks):
            peers = len(chunks) // len(set(chunks))
            why = f"{place.mesh} has {peers} ranks per row, which would take them at different tokens"
            return why, (Label(call.span, "generates the same rows on several ranks"),)
    return None, ()


def _readers(context: Context, role: str) -> Iterator[Node]:
    """The calls of a role that read one of its states."""
    for node in context.program.graph.calls:
        if any(holder.role == role and effect.kind == "reads" for holder, effect in effects(node)):
            yield node


def _between_calls(context: Context, load: Node) -> Node | None:
    """A load between calls of the weights that another load takes in flight; a call would not know its version."""
    targets = {sync.load: sync.target for sync in context.program.syncs}
    for other, target in targets.items():
        node = context.program.graph.nodes[other]
        if target == targets.get(load.id) and isinstance(node.op, RoleCall) and node.op.during is None:
            return node
    return None


def _missing_update(context: Context, load: Node) -> str | None:
    """Why the weights that a load gets are not those of a new version; None if they are."""
    for sync in context.program.syncs:
        if sync.load != load.id:
            continue
        updates = [
            node
            for node in context.program.graph.calls
            for holder, effect in effects(node)
            if holder == sync.source and effect.kind == "writes"
        ]
        if not any(node.id < sync.export for node in updates):
            return "no update comes before the sync, so they have no new version"
        if updates[-1].id > sync.export:
            return f"'{updates[-1].label}' comes after the sync, so they are not yet those of the new version"
    return None
