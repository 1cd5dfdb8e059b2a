"""The decision log of a queue: one JSON object per line; a run can be replayed from it.

>>> log = [Decision("dispatch", "scored", 0, (0, 1), prompts=(0, 1)), Decision("take", "scored", 0, (0, 1))]
>>> print(to_lines(log), end="")
{"kind": "dispatch", "queue": "scored", "version": 0, "groups": [0, 1], "prompts": [0, 1]}
{"kind": "take", "queue": "scored", "version": 0, "groups": [0, 1]}
>>> from_lines(to_lines(log)) == log
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from hfdsl.errors import CheckpointError
from hfdsl.runtime.schedule import QueueBatch, QueuedGroup, QueueState
from hfdsl.types.numbers import brief

DecisionKind: TypeAlias = Literal["dispatch", "take", "drop", "lose", "load"]

CallNumber: TypeAlias = tuple[int, int, int]
"""A call of a producer: its dispatch, its node and its rank."""


Loads: TypeAlias = Mapping[CallNumber, Sequence[tuple[int, int]]]
"""The versions of weights in flight that each call loaded, and before which decode steps."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of a queue under a version, with the groups by number and, for a dispatch, their prompts.

    Of a take, ``masked`` are the groups that are trained with a mask. A load is what time decided: ``call``, which
    makes groups of a dispatch, has ``loaded`` before which decode step which version of weights in flight.
    """

    kind: DecisionKind
    queue: str
    version: int
    groups: tuple[int, ...]
    prompts: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()
    call: CallNumber | None = None
    loaded: tuple[tuple[int, int], ...] = ()


def dispatch_decision(before: QueueState, after: QueueState) -> Decision:
    """The dispatch between two states."""
    groups = [after.groups[number] for number in range(before.dispatched, after.dispatched)]
    prompts = tuple(group.prompt for group in groups)
    return Decision("dispatch", after.spec.name, before.version, _numbers(groups), prompts)


def drop_decisions(after: QueueState) -> list[Decision]:
    """The decision to drop groups."""
    return [Decision("drop", after.spec.name, after.version, _numbers(after.dropped))] if after.dropped else []


def take_decision(batch: QueueBatch) -> Decision:
    """The decision to take groups."""
    return Decision("take", batch.queue, batch.update, _numbers(batch.groups), masked=tuple(sorted(batch.masked)))


def lose_decision(state: QueueState, groups: Iterable[int]) -> Decision:
    """The decision that groups have no rows."""
    return Decision("lose", state.spec.name, state.version, tuple(groups))


def load_decisions(queue: str, version: int, groups: Iterable[int], loads: Loads) -> list[Decision]:
    """The decisions that record which weights in flight the calls of a dispatch have loaded."""
    group_numbers = tuple(groups)
    return [
        Decision("load", queue, version, group_numbers, call=call, loaded=tuple(loaded))
        for call, loaded in loads.items()
    ]


def check_one_after_another(loads: Loads) -> None:
    """Refuse to repeat calls of a process that overlapped: one loaded weights older than another one's.

    Raises:
        CheckpointError: HF761.

    >>> check_one_after_another({(0, 1, 0): [(0, 0), (5, 1)], (1, 1, 0): [(0, 1)]})
    >>> check_one_after_another({(0, 1, 0): [(0, 0), (5, 1)], (1, 1, 0): [(0, 0)]})
    Traceback (most recent call last):
        ...
    hfdsl.errors.CheckpointError: HF761: the log has calls that were in progress at once: on rank 0, that of ...
    """
    newest: dict[tuple[int, int], tuple[int, int]] = {}  # by node and rank: dispatch and version
    for (dispatch, node, rank), loaded in sorted(loads.items()):
        before, version = newest.get((node, rank), (-1, -1))
        if loaded and loaded[0][1] < version:
            text = f"that of dispatch {dispatch} began with version {loaded[0][1]} of the weights, and that of"
            raise CheckpointError(
                "HF761",
                f"the log has calls that were in progress at once: on rank {rank}, {text} dispatch {before} had "
                f"version {version}; a run repeats calls one after another",
            )
        newest[node, rank] = dispatch, loaded[-1][1] if loaded else version


def check_one_run(decisions: Iterable[Decision]) -> None:
    """Refuse to repeat the decisions of several runs, which were appended to one file.

    Raises:
        CheckpointError: HF761.

    >>> dispatch = Decision("dispatch", "rollouts", 0, groups=(0, 1), prompts=(0, 1))
    >>> check_one_run([dispatch])
    >>> check_one_run([dispatch, dispatch])
    Traceback (most recent call last):
        ...
    hfdsl.errors.CheckpointError: HF761: the log dispatches group 0 of 'rollouts' twice: it has the decisions of ...
    """
    begun: dict[str, int] = {}  # by queue, the number of groups dispatched
    for decision in decisions:
        if decision.kind == "dispatch":
            first = decision.groups[0] if decision.groups else 0
            if first < begun.get(decision.queue, 0):
                text = f"the log dispatches group {first} of '{decision.queue}' twice: it has the decisions of several"
                advice = "write each run to a file of its own"
                if first:  # a run that was killed after its last save makes some decisions again
                    advice = f"{advice}, and after a load cut that file to its first running.decisions lines"
                raise CheckpointError("HF761", f"{text} runs, one after another; {advice}")
            begun[decision.queue] = first + len(decision.groups)


def _numbers(groups: Iterable[QueuedGroup]) -> tuple[int, ...]:
    return tuple(group.number for group in groups)


def to_lines(decisions: Iterable[Decision]) -> str:
    """Write decisions as JSON lines, without empty fields.

    >>> print(to_lines([Decision("drop", "rollouts", 3, groups=(0, 2))]), end="")
    {"kind": "drop", "queue": "rollouts", "version": 3, "groups": [0, 2]}
    """
    return "".join(json.dumps(as_dict(decision)) + "\n" for decision in decisions)


def as_dict(decision: Decision) -> dict[str, object]:
    """Convert a decision to plain values, without empty fields."""
    fields: dict[str, object] = {
        "kind": decision.kind,
        "queue": decision.queue,
        "version": decision.version,
        "groups": list(decision.groups),
    }
    lists = {
        "prompts": list(decision.prompts),
        "masked": list(decision.masked),
        "call": list(decision.call or ()),
        "loaded": [list(load) for load in decision.loaded],
    }
    return fields | {name: numbers for name, numbers in lists.items() if numbers}


def from_dict(entry: Any) -> Decision:
    """Convert from plain values; for malformed ones, one of the errors that ``from_lines`` catches."""
    kind, queue, version = entry["kind"], str(entry["queue"]), int(entry["version"])
    lists = {name: tuple(map(int, entry.get(name, ()))) for name in ("groups", "prompts", "masked")}
    call: CallNumber | None = None
    if numbers := entry.get("call"):
        dispatch, node, rank = map(int, numbers)
        call = dispatch, node, rank
    loaded = tuple((int(step), int(version)) for step, version in entry.get("loaded", ()))
    return Decision(kind, queue, version, **lists, call=call, loaded=loaded)


def read_log(file: str | PathLike[str]) -> list[Decision]:
    """Read the decisions in a file; errors as for ``from_lines``, and HF761 if it cannot be read."""
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            "HF761", f"the log '{file}' cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    return from_lines(text, f"'{file}'")


def from_lines(text: str, log: str = "the log") -> list[Decision]:
    """Read decisions from JSON lines; errors call their source ``log``.

    Raises:
        CheckpointError: HF761 for a line that is not one of a decision, or that ends too early.

    >>> from_lines('{"kind": "drop", "queue": "rollouts", "version": 3, "groups": [0, 2]}')[0].groups
    (0, 2)
    """
    decisions, lines = list[Decision](), text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            decision = from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError) as error:  # which int raises for an infinite number
            if isinstance(error, json.JSONDecodeError) and number == len(lines) and not text.endswith("\n"):
                problem = f"line {number} of {log} ends too early, as if the run had stopped while it wrote the line"
                advice = "remove the line to repeat the decisions before it"
                raise CheckpointError("HF761", f"{problem}; {advice}: {brief(line)}") from None
            problem = f"it has no {error}" if isinstance(error, KeyError) else brief(line)
            raise CheckpointError("HF761", f"line {number} of {log} is not a decision of a queue: {problem}") from None
        if decision.kind not in get_args(DecisionKind):
            raise CheckpointError("HF761", f"line {number} of {log} has the unknown kind '{decision.kind}'")
        decisions.append(decision)
    return decisions
