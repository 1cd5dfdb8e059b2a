"""Declared layouts that a program ignores: of weights that one rank alone returns, and of those that no role exports.

A worked example, a trainer on ``tp=2``::

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy", layout=Slices(0))                 # rank 1 returns nothing: rank 0 returns all of each weight
    def weights(self) -> dict[str, Tensor]: ...

A sync sends what ``held_weights`` gives, unless a derived class overrides the exporting method of the class that gives
it: then it sends what the overriding method returns on the first rank (``plan/scheduling.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.weights.exported_parts import holds_parts
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.weight_syncs import SyncSide, overrides, sides, weight_syncs
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import effects_of
from hfdsl.types.similar_names import nearest


def layouts_are_of_ranks(context: Context) -> Iterator[Finding]:
    """HF738: a layout of parts whose method rank 0 alone runs, or loads what no role exports."""
    graph, deployment = context.program.graph, context.program.deployment
    findings = dict[tuple[str, str, str], Finding]()
    for sync in weight_syncs(graph, deployment):
        side, parameters = sync.source, sync.source.parameters or sync.target.parameters
        is_alone = side.node.op.signature.runs_on_rank_zero  # type: ignore[union-attr]  # a call
        with suppress(Exception):  # the rule on layouts reports it
            if parameters and holds_parts(side, parameters):
                key = side.role, side.method, side.effect.state
                if is_alone:
                    findings.setdefault(key, _of_one_rank(side))
                elif overrides(side.placement.role, side.method, stated_by="held_weights"):
                    findings.setdefault(key, _of_a_base_class(side))
    exported = _exported(context.program.placements)
    for node in graph.calls:
        for side in sides(deployment, node, "loads"):
            with suppress(Exception):  # a user's function, whose result is not needed
                if side.effect.state not in exported and holds_parts(side, side.parameters):
                    findings.setdefault((side.role, side.method, side.effect.state), _without_exporter(side, exported))
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


def _of_a_base_class(side: SyncSide) -> Finding:
    role = side.placement.role
    base = next(base for base in role.__mro__ if "held_weights" in vars(base)).__name__
    return _finding(
        side,
        f", but {role.__name__} has its own {side.method}, below {base}, whose held_weights gives the parts of ranks: "
        "they may be others, so a sync sends what one rank returns, which has to be whole",
        f"if they are the same, repeat them in {role.__name__}: held_weights = {base}.held_weights; else define them",
    )


def _without_exporter(side: SyncSide, exported: dict[str, str]) -> Finding:
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
