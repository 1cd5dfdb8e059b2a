"""Rank 0 alone: weights that a method changes under ``Execute.RANK_ZERO``, while others read them on every rank.

Take an engine of two ranks, whose ``load`` runs on rank 0 alone. After ``hf.sync`` rank 0 samples its rows from the
trained weights and rank 1 from the initial ones, and the run joins the rows as if one policy had sampled them. A call
on all ranks that changes the same weights may broadcast them, so it silences the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import registered
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.signatures import StaticType
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.state import Effect, effects_of

CHANGES = frozenset({"writes", "loads"})


def ranks_hold_the_same_weights(context: Context) -> Iterator[Finding]:
    """HF708: what rank 0 alone writes or loads, no other rank reads."""
    program, holders = context.program, dict[tuple[str, str], list[tuple[Node, RoleCall, Effect]]]()
    for node in program.graph.calls if program.placements else ():
        if isinstance(node.op, RoleCall):
            for effect in effects_of(node.op.signature.body):
                holders.setdefault((node.op.role, effect.state), []).append((node, node.op, effect))
    for (role, state), calls in holders.items():
        placement = program.placements.get(role)
        if placement is None or placement.mesh.world_size == 1:
            continue
        changing = [(node, op) for node, op, effect in calls if effect.kind in CHANGES]
        reading = (node for node, op, effect in calls if effect.kind == "reads" and not op.signature.runs_on_rank_zero)
        reader = next(reading, None)
        if reader is not None and changing and all(op.signature.runs_on_rank_zero for _, op in changing):
            node, op = changing[0]
            others = "rank 1 keeps" if placement.mesh.world_size == 2 else "the other ranks keep"
            finding = Finding(
                "HF708",
                f"'{node.label}' changes '{state}' on rank 0 alone, and '{reader.label}' reads it on all "
                f"{placement.mesh.world_size} ranks",
                Label(node.span, f"{others} the weights that '{role}' was built with"),
                (Label(reader.span, "reads them on every rank"), Label(op.signature.span, "runs on rank 0")),
            )
            advice = f"register '{node.label}' for all ranks, which then all have the same weights"
            yield with_suggestions(context, finding, _on_all_ranks(op), advice)


def _on_all_ranks(op: RoleCall) -> Iterator[Suggestion]:
    """Suggest to run a method on all ranks, if it returns None: any other result would become a list."""
    registration, returns = op.signature.registration, op.signature.returns
    if registration is not None and isinstance(returns, StaticType) and returns.annotation in (None, type(None)):
        everywhere = replace(registration, execute_mode=Execute.ALL)
        words = f"register '{op.role}.{op.signature.name}' without Execute.RANK_ZERO"
        yield Suggestion((Change(words, partial(registered, op.signature.body, everywhere)),))
