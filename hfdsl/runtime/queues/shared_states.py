"""Updates by another plan of a state whose versions a queue counts: they make rows older than the lag says."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from hfdsl.errors import HfWarning
from hfdsl.graph.stages import HeldState, effects
from hfdsl.plan.plan import Plan


def warn_of_shared_updates(plans: Iterable[Plan], added: Plan) -> None:
    """Warn (HF746) if a plan trains a state that another plan of the run trains, and one of them has queues."""
    for plan in plans:
        shared = sorted(_trained(plan) & _trained(added))
        if shared and (plan.split.queues or added.split.queues):
            queued, other = (plan, added) if plan.split.queues else (added, plan)
            names = ", ".join(f"'{held.role}.{held.state}'" for held in shared)
            text = f"'{other.name}' trains {names}, whose updates the queues of '{queued.name}' count"
            advice = f"run no step of '{other.name}' while a stream of '{queued.name}' has steps in progress"
            warnings.warn(HfWarning("HF746", f"{text}: rows would be older than the lag says; {advice}"), stacklevel=3)


def _trained(plan: Plan) -> set[HeldState]:
    return {held for node in plan.graph.calls for held, effect in effects(node) if effect.kind == "writes"}
