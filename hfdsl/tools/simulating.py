"""``hfdsl simulate``: how long steps of a dataflow with queues would take with one lag or another."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hfdsl.graph.stages import syncs
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.queues import out_of_step
from hfdsl.plan.rows import most_rows, row_table
from hfdsl.plan.throughput import Throughput, throughput
from hfdsl.plan.timeline import read_trace
from hfdsl.plan.weight_senders import CopiedWeights, with_copied_weights
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.plan_simulation import (
    CallSeconds,
    DrawnSeconds,
    RecordedSeconds,
    Utilization,
    recorded_seconds,
    simulate_groups,
    simulate_plan,
    with_lag,
)
from hfdsl.tools.call_times import by_label, no_time, times_of
from hfdsl.tools.importing import UsageError
from hfdsl.tools.output import machine, say, show_json
from hfdsl.types.foreign_text import parse_toml
from hfdsl.types.numbers import brief, is_number

UTILIZATIONS = ("utilization", "engine_utilization")
"""What a duration says of the call's device and engine."""

COPIED = "weights copied"
"""The label of the seconds per step with copied weights."""

LEAST_GAIN = 0.01
"""The share of a step that copied weights have to save to be mentioned."""

NO_LAG = "none"
"""How the command line names steps that run one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """The simulation of one lag: seconds per step, and shares of groups and of time.

    ``copied_seconds`` are those of the same plan with copied weights (``with_copied_weights``), where it is faster.
    """

    lag: int | None
    late: Late | None
    seconds: float
    copied_seconds: float | None
    staleness: Mapping[int, float]
    dropped: float
    lost: float
    idle: Mapping[str, float]


def show_simulation(plan: CompiledPlan, arguments: argparse.Namespace) -> None:
    """Simulate the lags of the command line, and print them side by side.

    Raises:
        UsageError: where the program has no queue, the file has no time for a node or cannot be read, or a size that
            decides the number of groups is unknown.
        HfError: HF762 if a queue starves.
    """
    if arguments.late is not None and arguments.slots is None:
        raise UsageError("--late goes with --slots: batches that are taken in order are never late")
    if arguments.keep is not None and arguments.slots is None:
        raise UsageError("--keep goes with --slots: groups are filtered one by one")
    if arguments.slots is not None and (arguments.utilization or arguments.engine_utilization):
        raise UsageError("--slots simulates groups that share no device: utilization does not go with it")
    queues, in_python = (
        len(plan.split.queues),
        "running.stream(loader, seconds=...) runs the program on a virtual clock",
    )
    if not queues:
        raise UsageError(f"'{plan.name}' has no hf.queue with a lag, so there is nothing to compare")
    if arguments.slots is not None and queues > 1:
        raise UsageError(f"--slots simulates the groups of one queue, and '{plan.name}' has {queues}: {in_python}")
    if arguments.slots is None and out_of_step(plan):
        instead = "--slots N simulates its groups one by one, and " if queues == 1 else ""
        raise UsageError(f"a batch of a queue of '{plan.name}' is not what a step puts in: {instead}{in_python}")
    if arguments.seconds is None:
        raise UsageError(f"give --seconds FILE: a run's trace or a TOML file with the times of calls{_example(plan)}")
    seconds = _read(Path(arguments.seconds), plan)
    if missing := [label for label in _timed(plan) if label not in seconds]:
        raise UsageError(no_time(arguments.seconds, missing))
    seconds = _with_utilization(plan, seconds, arguments)
    copied = with_copied_weights(plan)
    lags = _lags(arguments.lag, plan, arguments.slots is not None)
    rows = [_row(plan, lag, seconds, arguments, copied) for lag in lags]
    if machine(arguments):
        show_json([asdict(row) for row in rows])
    else:
        say(_table(plan, rows, arguments))
        if arguments.slots is None:
            say(f"\nif calls took their median times, lag {_largest(rows)}: {_slowest(plan, seconds, _largest(rows))}")
        if _gains(rows) and copied is not None:
            places = f"the {'placement' if len(copied.roles) == 1 else 'placements'} of {' and '.join(copied.roles)}"
            say(f'{COPIED}: with transport="{copied.transport}" in {places}, so that no sync waits for earlier calls')


def _timed(plan: CompiledPlan) -> list[str]:
    """The calls that need a time, in the order of the program."""
    light = _light(plan)
    return [step.label for step in plan.steps if step.label not in light]


def _example(plan: CompiledPlan) -> str:
    """The end of a message: a file with the calls of the plan, and times to replace."""
    names = dict.fromkeys(label.partition("#")[0] for label in _timed(plan))
    lines = [
        f'"{name}" = {{ median = 2.0, tail = 1.5 }}' if i == 0 else f'"{name}" = 2.0' for i, name in enumerate(names)
    ]
    return ", in seconds (tail is the 99th percentile over the median), for example:\n\n" + "\n".join(
        ["[seconds]", *lines]
    )


def _largest(rows: Sequence[LagRow]) -> int:
    return max(row.lag or 0 for row in rows)


def _slowest(plan: CompiledPlan, seconds: Mapping[str, CallSeconds], lag: int) -> Throughput:
    """The bottleneck, computed from the median duration of each call."""
    medians = {
        label: median(call_seconds.seconds) if isinstance(call_seconds, RecordedSeconds) else call_seconds.median
        for label, call_seconds in seconds.items()
        if isinstance(call_seconds, (DrawnSeconds, RecordedSeconds))
    }
    shares = {label: share for label, share in seconds.items() if isinstance(share, Utilization)}
    return throughput(
        plan,
        medians,
        lag,
        utilization={label: share.utilization for label, share in shares.items()},
        engine_utilization={label: share.engine_utilization for label, share in shares.items()},
    )


def _light(plan: CompiledPlan) -> set[str]:
    """The calls that take no time unless the file has one: those that only move weights."""
    moving = {node for sync in syncs(plan.graph) for node in (sync.export, sync.load)}
    return {step.label for step in plan.steps if step.node in moving}


def _read(file: Path, plan: CompiledPlan) -> Mapping[str, CallSeconds]:
    """The durations of calls: those of a trace, or the distributions of a TOML file."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix != ".toml":
            return recorded_seconds(plan, read_trace(text))
        table = parse_toml(text)["seconds"]
    except OSError as error:
        raise UsageError(f"cannot read '{file}': {error.strerror}") from None
    except KeyError:
        raise UsageError(f"'{file}' has no table [seconds]; write the times of calls{_example(plan)}") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"'{file}' is not a trace of hfdsl, nor a TOML file with a table [seconds]: {error}") from None
    return times_of(plan, file, table, _call_seconds, _timed(plan))


def _call_seconds(label: str, entry: Any) -> DrawnSeconds:
    """``41.0``, or ``{ median = 41.0, tail = 3.0, utilization = 0.5, engine_utilization = 0.8 }``.

    Raises:
        ValueError: for anything else.
    """
    values = entry if isinstance(entry, dict) else {"median": entry}
    names_fit = values.keys() <= {"median", "tail", *UTILIZATIONS} and "median" in values
    if not names_fit or not all(map(is_number, values.values())):
        raise ValueError(
            f'"{label}" is a number of seconds or {{ median = SECONDS, tail = P99/MEDIAN, utilization = SHARE, '
            f"engine_utilization = SHARE }}, got {brief(entry)}"
        )
    median, tail = float(values["median"]), float(values.get("tail", 1.0))
    if not (0 <= median < float("inf") and 1 <= tail < float("inf")):
        raise ValueError(f'"{label}" takes {median:g} s with a tail of {tail:g}: at least 0 s, a tail of at least 1')
    try:
        return DrawnSeconds(median, tail, **{name: float(values[name]) for name in UTILIZATIONS if name in values})
    except ValueError as error:
        raise ValueError(f'"{label}": {error}') from None


def _with_utilization(
    plan: CompiledPlan, seconds: Mapping[str, CallSeconds], arguments: argparse.Namespace
) -> Mapping[str, CallSeconds]:
    """The durations with the shares of the command line, which come before those of a file.

    Raises:
        UsageError: for a name that no call has, or what is no share.
    """
    timed = dict(seconds)
    for name in UTILIZATIONS:
        shares = dict[str, float]()
        for text in getattr(arguments, name):
            call, _, share = text.rpartition("=")
            try:
                shares[call] = float(share)
                Utilization(utilization=shares[call])
            except ValueError:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} takes CALL=SHARE, with a share from 0 to 1, got '{text}'") from None
        for label, share in by_label(plan, shares).items():
            call_seconds = timed.get(label)
            if isinstance(call_seconds, (DrawnSeconds, RecordedSeconds)):
                changed: Any = {name: share}
                timed[label] = replace(call_seconds, **changed)
    return timed


def _lags(texts: Sequence[str], plan: CompiledPlan, by_groups: bool) -> list[int | None]:
    declared = {queue.lag or 0 for _, queue in plan.split.queues}
    texts = texts or ([] if by_groups else [NO_LAG]) + [str(lag) for lag in sorted({0, 1, 2, 4, 8} | declared)]
    try:
        lags = [None if text == NO_LAG else int(text) for text in texts]
    except ValueError:
        raise UsageError(f"--lag takes numbers and '{NO_LAG}', got {', '.join(map(repr, texts))}") from None
    if any(lag is not None and lag < 0 for lag in lags):
        raise UsageError("--lag takes numbers of at least 0")
    if by_groups and None in lags:
        raise UsageError(f"--slots simulates queues: '--lag {NO_LAG}' does not go with it")
    return list(dict.fromkeys(lags))


def _row(
    plan: CompiledPlan,
    lag: int | None,
    seconds: Mapping[str, CallSeconds],
    arguments: argparse.Namespace,
    copied: CopiedWeights | None,
) -> LagRow:
    late: Late | None = None if lag is None else arguments.late or plan.split.queues[0][1].late
    if arguments.slots is None or late is None:
        run = simulate_plan(with_lag(plan, lag), seconds, arguments.steps, arguments.seed)
        return LagRow(
            lag=lag,
            late=late,
            seconds=run.seconds,
            copied_seconds=_copied_seconds(copied, lag, seconds, arguments, run.seconds),
            staleness=_shares(run.staleness),
            dropped=0.0,
            lost=0.0,
            idle=run.idle,
        )
    groups = simulate_groups(
        with_lag(plan, lag),
        late,
        _groups(plan),
        arguments.slots,
        seconds,
        arguments.steps,
        arguments.seed,
        arguments.keep or 1.0,
    )
    producers, trainer = groups.idle
    return LagRow(
        lag=lag,
        late=late,
        seconds=groups.seconds,
        copied_seconds=None,
        staleness=_shares(groups.staleness),
        dropped=groups.dropped_share,
        lost=groups.lost_share,
        idle={"producers": producers, "trainer": trainer},
    )


def _copied_seconds(
    copied: CopiedWeights | None,
    lag: int | None,
    seconds: Mapping[str, CallSeconds],
    arguments: argparse.Namespace,
    waiting: float,
) -> float | None:
    """The seconds per step if no role waited in a sync for calls of its readers; None if that gains nothing."""
    if copied is None or lag is None:
        return None
    run = simulate_plan(with_lag(copied.plan, lag), seconds, arguments.steps, arguments.seed)
    return run.seconds if run.seconds < (1 - LEAST_GAIN) * waiting else None


def _groups(plan: CompiledPlan) -> int:
    """The number of groups in a batch of the first queue."""
    node, queue = plan.split.queues[0]
    rows = row_table(plan, plan.dims, most_rows(plan, plan.dims)).rows.get(node.id)
    if rows is None:
        raise UsageError("--slots needs the size of every dim that the queue's rows depend on; give it with --set")
    return max(1, rows // queue.group)


def _shares(counts: Mapping[int, int]) -> Mapping[int, float]:
    total = sum(counts.values())
    return {staleness: count / total for staleness, count in sorted(counts.items())}


def _table(plan: CompiledPlan, rows: Sequence[LagRow], arguments: argparse.Namespace) -> str:
    staleness = sorted({number for row in rows for number in row.staleness})
    idle = list(dict.fromkeys(group for row in rows for group in row.idle))
    first = rows[0].seconds
    lines = [
        ("lag", [NO_LAG if row.lag is None else str(row.lag) for row in rows]),
        ("seconds per step", [_seconds(row.seconds) for row in rows]),
        *([(COPIED, [_seconds(row.copied_seconds) for row in rows])] if _gains(rows) else ()),
        ("times as fast", [f"{first / row.seconds:.2f}" if row.seconds else "" for row in rows]),
        *((f"staleness {number}", [_percent(row.staleness.get(number)) for row in rows]) for number in staleness),
        *([("dropped", [_percent(row.dropped) for row in rows])] if arguments.slots is not None else ()),
        *([("lost to filters", [_percent(row.lost) for row in rows])] if arguments.keep is not None else ()),
        *((f"idle: {group}", [_percent(row.idle.get(group)) for row in rows]) for group in idle),
    ]
    width = max(len(label) for label, _ in lines)
    table = [f"{label:{width}}  {_cells(cells)}".rstrip() for label, cells in lines]
    return "\n".join([f"{plan.name}: {arguments.steps} steps, {_schedule(plan, rows, arguments)}", "", *table])


def _gains(rows: Sequence[LagRow]) -> bool:
    return any(row.copied_seconds is not None for row in rows)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.4g}"


def _schedule(plan: CompiledPlan, rows: Sequence[LagRow], arguments: argparse.Namespace) -> str:
    """The simulated schedule, in words."""
    late = next((row.late for row in rows if row.late), None)
    if arguments.slots is not None:
        return f'groups one by one, {arguments.slots} at a time, late="{late}"'
    if late is None or late == "wait":
        return "batches in order, as runs take them"
    text = "batches in order, so none is late"
    return f'{text}; --slots N simulates late="{late}"' if len(plan.split.queues) == 1 else text


def _cells(cells: Iterable[str]) -> str:
    return "  ".join(f"{cell:>7}" for cell in cells)


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"
