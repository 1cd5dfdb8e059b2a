"""Declared layouts that a program ignores: of weights that rank 0 alone returns, and of those that nobody exports.

A worked example, a trainer on ``tp=2``::

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy", layout=Slices(0))                 # rank 1 returns nothing: rank 0 returns all of each weight
    def weights(self) -> dict[str, Tensor]: ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.weights.exported_parts import holds_parts
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.weight_syncs import SyncSide, sides, weight_syncs
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import effects_of
from hfdsl.types.batches import nearest


def layouts_are_of_ranks(context: Context) -> Iterator[Finding]:
    """HF738: a layout of parts whose method rank 0 alone runs, or loads what no role exports."""
    graph, deployment = context.program.graph, context.program.deployment
    findings = dict[tuple[str, str, str], Finding]()
    for sync in weight_syncs(graph, deployment):
        side, parameters = sync.source, sync.source.parameters or sync.target.parameters
        is_alone = side.node.op.signature.runs_on_rank_zero  # type: ignore[union-attr]  # a call
        with suppress(Exception):  # the rule on layouts reports it
            if is_alone and parameters and holds_parts(side, parameters):
                findings.setdefault((side.role, side.method, side.effect.state), _of_one_rank(side))
    exported = _exported(context.program.placements)
    for node in graph.calls:
        for side in sides(deployment, node, "loads"):
            with suppress(Exception):  # a function of the user's; nobody needs what it returns
                if side.effect.state not in exported and holds_parts(side, side.parameters):
                    findings.setdefault((side.role, side.method, side.effect.state), _of_nobody(side, exported))
    yield from findings.values()


def _exported(placements: Mapping[str, Placement[Any]]) -> dict[str, str]:
    """The states that placed roles export, each with a method that does."""
    return {
        effect.state: f"{name}.{method}"
        for name, place in placements.items()
        for method in registered_methods(place.role)
        for effect in effects_of(getattr(place.role, method))
        if effect.kind == "exports"
    }


def _of_one_rank(side: SyncSide) -> Finding:
    return _finding(
        side,
        " by which ranks hold parts, but rank 0 alone runs it and has to return whole parameters: the layout "
        "has no effect",
        "without Execute.RANK_ZERO every rank returns its part, and a sync joins them; else leave layout= out",
    )


def _of_nobody(side: SyncSide, exported: dict[str, str]) -> Finding:
    state = side.effect.state
    near = nearest(state, list(exported))
    note = f"'{exported[near]}' exports '{near}'" if near else f'declare who exports it: @hf.exports("{state}")'
    problem = f", but no role of the program exports '{state}': the layout has no effect, and each rank gets the "
    return _finding(side, f"{problem}whole value", note)


def _finding(side: SyncSide, problem: str, note: str) -> Finding:
    return Finding(
        "HF738",
        f"'{side.node.label}' declares a layout of '{side.effect.state}'{problem}",
        Label(side.node.op.signature.span, f"declares a layout of '{side.effect.state}'"),  # type: ignore[union-attr]  # a call
        (Label(side.placement.span, f"'{side.role}' has {side.placement.mesh}"),),
        notes=(note,),
    )
