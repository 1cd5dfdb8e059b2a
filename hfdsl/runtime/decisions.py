"""The decisions of a queue as a log: one JSON object a line, from which a run can be repeated.

>>> log = [Decision("dispatch", "scored", 0, (0, 1), prompts=(0, 1)), Decision("take", "scored", 0, (0, 1))]
>>> print(to_lines(log), end="")
{"kind": "dispatch", "queue": "scored", "version": 0, "groups": [0, 1], "prompts": [0, 1]}
{"kind": "take", "queue": "scored", "version": 0, "groups": [0, 1]}
>>> from_lines(to_lines(log)) == log
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hfdsl.errors import CheckpointError
from hfdsl.runtime.schedule import QueueBatch, QueuedGroup, QueueState

DecisionKind: TypeAlias = Literal["dispatch", "take", "drop", "lose"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a queue decided under a version: about which groups, by number, and of a dispatch their prompts.

    Of a take, ``masked`` are the groups that are trained with a mask.
    """

    kind: DecisionKind
    queue: str
    version: int
    groups: tuple[int, ...]
    prompts: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()


def dispatch_decision(before: QueueState, after: QueueState) -> Decision:
    """The dispatch that led from one state to the next."""
    groups = [after.groups[number] for number in range(before.dispatched, after.dispatched)]
    return Decision("dispatch", after.spec.name, before.version, _numbers(groups), tuple(g.prompt for g in groups))


def take_decisions(before: QueueState, after: QueueState, batch: QueueBatch | None) -> list[Decision]:
    """What a take decided: what it dropped and what it took."""
    name, version = after.spec.name, before.version
    drops = [Decision("drop", name, version, _numbers(after.dropped))] if after.dropped else []
    if batch is None:
        return drops
    return [*drops, Decision("take", name, version, _numbers(batch.groups), masked=tuple(sorted(batch.masked)))]


def lose_decision(state: QueueState, groups: Iterable[int]) -> Decision:
    """That groups have no rows."""
    return Decision("lose", state.spec.name, state.version, tuple(groups))


def _numbers(groups: Iterable[QueuedGroup]) -> tuple[int, ...]:
    return tuple(group.number for group in groups)


def to_lines(decisions: Iterable[Decision]) -> str:
    """As JSON lines; what is empty is left out.

    >>> print(to_lines([Decision("drop", "rollouts", 3, groups=(0, 2))]), end="")
    {"kind": "drop", "queue": "rollouts", "version": 3, "groups": [0, 2]}
    """
    return "".join(json.dumps(_as_dict(decision)) + "\n" for decision in decisions)


def _as_dict(decision: Decision) -> dict[str, object]:
    fields: dict[str, object] = {
        "kind": decision.kind,
        "queue": decision.queue,
        "version": decision.version,
        "groups": list(decision.groups),
    }
    lists = {"prompts": list(decision.prompts), "masked": list(decision.masked)}
    return fields | {name: numbers for name, numbers in lists.items() if numbers}


def from_lines(text: str) -> list[Decision]:
    """The decisions again.

    Raises:
        CheckpointError: HF761 for a line that is not one of a decision.

    >>> from_lines('{"kind": "drop", "queue": "rollouts", "version": 3, "groups": [0, 2]}')[0].groups
    (0, 2)
    """
    decisions = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            lists = {name: tuple(map(int, entry.get(name, ()))) for name in ("groups", "prompts", "masked")}
            decision = Decision(entry["kind"], str(entry["queue"]), int(entry["version"]), **lists)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError("HF761", f"line {number} of the log is no decision of a queue: {error!r}") from None
        if decision.kind not in get_args(DecisionKind):
            raise CheckpointError("HF761", f"line {number} of the log has the unknown kind '{decision.kind}'")
        decisions.append(decision)
    return decisions
