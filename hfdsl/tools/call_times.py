"""The table ``[seconds]`` of a TOML file, which has times of calls: all of its mistakes at once.

An example::

    [seconds]
    "actor.update" = 18.0        # of every update: actor.update#1, actor.update#2
    "engine.generate" = 41.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hfdsl.plan.compiled import CompiledPlan
from hfdsl.tools.importing import UsageError
from hfdsl.types.numbers import brief, is_number
from hfdsl.types.similar_names import closest, nearest

T = TypeVar("T")


def times_of(
    plan: CompiledPlan, file: Path, table: Any, parse: Callable[[str, Any], T], needed: Sequence[str]
) -> dict[str, T]:
    """The times of a table by call, each entry parsed; the ``needed`` calls have one.

    Raises:
        UsageError: with every entry that ``parse`` refuses by a ``ValueError``, names of no call, and missing times.
    """
    if not isinstance(table, Mapping):
        not_this = f"'{file}' is not a trace of hfdsl, nor a TOML file with a table [seconds]"
        raise UsageError(f"{not_this}: seconds = {brief(table)}")
    times, mistakes = dict[str, T](), list[str]()
    for name, entry in table.items():
        try:
            times[name] = parse(name, entry)
        except ValueError as error:
            mistakes.append(f"'{file}': {error}")
    mistakes += unknown_calls(plan, table)
    names = call_names(plan)
    stated = {name if name in names else nearest(name, names) for name in table}
    missing = [label for label in needed if stated.isdisjoint((label, label.partition("#")[0]))]
    if missing:
        mistakes.append(no_time(file, missing))
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return by_label(plan, times)


def seconds(name: str, entry: Any) -> float:
    """A number of seconds.

    Raises:
        ValueError: for anything else.

    >>> seconds("actor.update", 18)
    18.0
    """
    if not is_number(entry) or not 0 <= entry < math.inf:
        raise ValueError(f'"{name}" is a number of seconds, at least 0, got {brief(entry)}')
    return float(entry)


def no_time(file: Path, missing: Iterable[str]) -> str:
    """The message about calls without a time."""
    return f"'{file}' has no time for {', '.join(map(repr, sorted(missing)))}"


def call_names(plan: CompiledPlan) -> list[str]:
    """The names of calls: ``actor.update#1``, and ``actor.update`` for all calls of that name."""
    labels = [step.label for step in plan.steps]
    return sorted({*labels, *(label.partition("#")[0] for label in labels)})


def unknown_calls(plan: CompiledPlan, names: Iterable[str]) -> Iterator[str]:
    """A message for each name that no call has."""
    known = call_names(plan)
    return (f"'{plan.name}' has no call '{name}'; {closest(name, known)}" for name in names if name not in known)


def by_label(plan: CompiledPlan, named: Mapping[str, T]) -> dict[str, T]:
    """Values by call, where a name without a number stands for all calls of that name.

    Raises:
        UsageError: for names that no call has.
    """
    if unknown := list(unknown_calls(plan, named)):
        raise UsageError("\n".join(unknown))
    names = {step.label: (step.label, step.label.partition("#")[0]) for step in plan.steps}
    return {
        label: next(named[name] for name in own if name in named)
        for label, own in names.items()
        if not named.keys().isdisjoint(own)
    }
