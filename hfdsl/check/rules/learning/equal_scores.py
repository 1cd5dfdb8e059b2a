"""Equal scores: do the scores of a role tell responses apart?

A worked example, the files of a policy for a reward model, whose score head they do not have::

    RewardConfig(ModelConfig(path="models/policy"))     # the head begins at 0, and nothing trains it
    RewardConfig(ModelConfig(path="models/reward"))

All rewards are then equal, advantages are 0, and the policy learns nothing. Roles state this by ``equal_scores``.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.graph.program import RoleCall
from hfdsl.protocols import role_facts


def scores_tell_responses_apart(context: Context) -> Iterator[Finding]:
    """HF967: no role that is called gives every response the same score."""
    calls = {node.op.role: node for node in reversed(context.program.graph.calls) if isinstance(node.op, RoleCall)}
    for role, place in context.program.placements.items():
        why = role_facts.equal_scores.of(place) if role in calls else None
        if why is not None:
            scores = Label(calls[role].span, "scores responses")
            yield Finding("HF967", message(role, why), Label(place.span, "configured here"), (scores,))


def message(role: str, why: str) -> str:
    """The message of the finding on a role or a field of a configuration."""
    return f"'{role}' gives every response the same score: {why}"
