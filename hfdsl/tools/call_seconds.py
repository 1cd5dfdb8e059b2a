"""Seconds of calls, as ``--seconds FILE`` gives them: a recorded trace, or a TOML file with a table ``[seconds]``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.stages import syncs
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.queues import decides
from hfdsl.plan.timeline import read_trace
from hfdsl.runtime.queues.durations import UTILIZATIONS, CallSeconds, DrawnSeconds
from hfdsl.runtime.queues.groups import are_known
from hfdsl.runtime.queues.plan_simulation import recorded_seconds
from hfdsl.runtime.queues.stage_plans import queue_stages
from hfdsl.runtime.queues.step_timing import StepTiming
from hfdsl.tools.call_times import no_time, times_of
from hfdsl.tools.importing import UsageError
from hfdsl.types.foreign_text import parse_toml
from hfdsl.types.numbers import brief, is_number


def read_seconds(file: Path, plan: CompiledPlan) -> Mapping[str, CallSeconds]:
    """The durations of calls: those of a trace, or the distributions of a TOML file.

    Raises:
        UsageError: for a file that is neither, or that has no time for a call which needs one.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix != ".toml":
            return _complete(recorded_seconds(plan, read_trace(text)), file, plan)
        table = parse_toml(text)["seconds"]
    except OSError as error:
        raise UsageError(f"cannot read '{file}': {error.strerror}") from None
    except KeyError:
        raise UsageError(f"'{file}' has no table [seconds]; write the times of calls{example(plan)}") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"'{file}' is not a trace of hfdsl, nor a TOML file with a table [seconds]: {error}") from None
    return times_of(plan, file, table, _call_seconds, _timed(plan))


def step_timing(file: Path) -> StepTiming:
    """The timing of programs whose calls take the seconds of a file; what it cannot time is a ``UsageError``."""

    def seconds(plan: CompiledPlan) -> Mapping[str, CallSeconds]:
        check_sizes(plan)
        return read_seconds(file, plan)

    return StepTiming(seconds)


def check_sizes(plan: CompiledPlan) -> None:
    """Refuse a plan with dynamic queues, if its sizes do not determine the groups of a batch.

    Raises:
        UsageError: with how to give them.
    """
    if decides(plan) and not all(are_known(queue, plan.dims) for queue in queue_stages(plan).queues):
        raise UsageError("the groups of a batch depend on dims whose sizes are unknown: give them with --set")


def _complete(recorded: Mapping[str, CallSeconds], file: Path, plan: CompiledPlan) -> Mapping[str, CallSeconds]:
    if missing := [label for label in _timed(plan) if label not in recorded]:
        raise UsageError(no_time(file, missing))
    return recorded


def _call_seconds(label: str, entry: Any) -> DrawnSeconds:
    """``41.0``, or ``{ median = 41.0, tail = 3.0, utilization = 0.5, interference = 0.1, engine_utilization = 0.8 }``.

    Raises:
        ValueError: for anything else.
    """
    values = entry if isinstance(entry, dict) else {"median": entry}
    names_fit = values.keys() <= {"median", "tail", *UTILIZATIONS} and "median" in values
    if not names_fit or not all(map(is_number, values.values())):
        raise ValueError(
            f'"{label}" is a number of seconds or {{ median = SECONDS, tail = P99/MEDIAN, utilization = SHARE, '
            f"interference = SHARE, engine_utilization = SHARE }}, got {brief(entry)}"
        )
    median, tail = float(values["median"]), float(values.get("tail", 1.0))
    if not (0 <= median < float("inf") and 1 <= tail < float("inf")):
        raise ValueError(f'"{label}" takes {median:g} s with a tail of {tail:g}: at least 0 s, a tail of at least 1')
    try:
        return DrawnSeconds(median, tail, **{name: float(values[name]) for name in UTILIZATIONS if name in values})
    except WiringError as error:
        raise ValueError(f'"{label}": {error.message}') from None


def example(plan: CompiledPlan) -> str:
    """The end of a message: a file with the calls of the plan, and times to replace."""
    names = dict.fromkeys(label.partition("#")[0] for label in _timed(plan))
    lines = [
        f'"{name}" = {{ median = 2.0, tail = 1.5 }}' if i == 0 else f'"{name}" = 2.0' for i, name in enumerate(names)
    ]
    return ", in seconds (tail is the 99th percentile over the median), for example:\n\n" + "\n".join(
        ["[seconds]", *lines]
    )


def _timed(plan: CompiledPlan) -> list[str]:
    """The calls that need a time, in the order of the program."""
    light = _light(plan)
    return [step.label for step in plan.steps if step.label not in light]


def _light(plan: CompiledPlan) -> set[str]:
    """The calls that take no time unless the file has one: those that only move weights."""
    moving = {node for sync in syncs(plan.graph) for node in (sync.export, sync.load)}
    return {step.label for step in plan.steps if step.node in moving}
