"""The syncs of a plan whose copies can be compared with their exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hfdsl.graph.program import Ref
from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols.state import EffectKind, effects_of

DTypes: TypeAlias = Mapping[str, str]
"""The dtypes of weights, by name."""


@dataclass(frozen=True, slots=True)
class VerifiedSync:
    """A state that one role exports and another loads, in a plan."""

    state: str
    source: str
    target: str


def syncs_of(plan: Plan) -> dict[VerifiedSync, Step]:
    """The syncs of a plan between calls, each with its exporting step; syncs in flight are excluded."""
    return dict(_loads(plan))


def last_of_each_copy(plan: Plan) -> dict[tuple[str, str], VerifiedSync]:
    """The syncs of a plan after which no other role sends the state to the role that loads it, by role and state."""
    return {(sync.target, sync.state): sync for sync, _ in _loads(plan)}


def _loads(plan: Plan) -> Iterator[tuple[VerifiedSync, Step]]:
    """For each load between calls, in order, its sync and the exporting step."""
    steps = {step.node: step for step in plan.steps}
    for step in plan.steps:
        for state in states(step, "loads") if not plan.loads_in_flight(step) else ():
            for _, operand in step.arguments:
                source = steps.get(operand.node) if isinstance(operand, Ref) else None
                if source is not None and source.role is not None and state in states(source, "exports"):
                    yield VerifiedSync(state, source.role, step.role or ""), source


def states(step: Step, kind: EffectKind) -> list[str]:
    """The states that a role's call exports, loads, reads or writes."""
    return [effect.state for effect in effects_of(step.signature.body) if step.role is not None and effect.kind == kind]
