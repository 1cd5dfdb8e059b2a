"""``hfdsl simulate``: how long steps of a dataflow with queues would take with one lag or another."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from hfdsl.check.report import CheckError
from hfdsl.check.run import build_report
from hfdsl.errors import SizeError, WiringError
from hfdsl.graph.program import Queue
from hfdsl.plan.build import context_of, with_graph
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.plan import Plan
from hfdsl.plan.queues import decides, out_of_step
from hfdsl.plan.timeline import TraceFile
from hfdsl.plan.weight_senders import CopiedWeights, with_copied_weights
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.durations import UTILIZATIONS, CallSeconds, DrawnSeconds, RecordedSeconds, Utilization
from hfdsl.runtime.queues.groups import queue_specs
from hfdsl.runtime.queues.plan_simulation import PlanSimulation, with_lag
from hfdsl.runtime.queues.queue_simulation import simulate_run
from hfdsl.runtime.queues.stage_plans import queue_stages
from hfdsl.runtime.queues.step_timing import SAME, bottleneck
from hfdsl.tools.call_seconds import check_sizes, example, read_seconds
from hfdsl.tools.call_times import by_label
from hfdsl.tools.importing import UsageError
from hfdsl.tools.output import machine, say, show_json
from hfdsl.tools.stepping import check_writable

COPIED = "weights copied"
"""The label of the seconds per step with copied weights."""

NO_LAG = "none"
"""How the command line names steps that run one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRow:
    """The simulation of one lag: seconds per step, and shares of groups and of time.

    ``copied_seconds`` are those of the same plan with copied weights (``with_copied_weights``), where it is faster.
    ``late`` has the discipline of each queue, ``dropped`` and ``lost`` the shares of each dynamic queue.
    """

    lag: int | None
    late: Sequence[Late]
    seconds: float
    copied_seconds: float | None
    staleness: Mapping[int, float]
    dropped: Mapping[str, float]
    lost: Mapping[str, float]
    idle: Mapping[str, float]


def show_simulation(plan: CompiledPlan, arguments: argparse.Namespace) -> None:
    """Simulate the lags of the command line, and print them side by side.

    Raises:
        UsageError: where the program has no queue, the file has no time for a node or cannot be read, or a size that
            decides the number of groups is unknown.
        CheckError: with what the check finds in the program with the discipline of the command line.
        HfError: HF762 if a queue starves.
    """
    if not plan.split.queues:
        raise UsageError(f"'{plan.name}' has no hf.queue with a lag, so there is nothing to compare")
    if arguments.late is not None:
        plan = _with_late(plan, arguments.late)
    if arguments.keep is not None and not (decides(plan) and any(queue.loses for queue in queue_stages(plan).queues)):
        raise UsageError(
            f"--keep is the share of groups that filters keep, and no queue of '{plan.name}' is behind one"
        )
    if arguments.seconds is None:
        raise UsageError(f"give --seconds FILE: a run's trace or a TOML file with the times of calls{example(plan)}")
    seconds = read_seconds(Path(arguments.seconds), plan)
    seconds = _with_utilization(plan, seconds, arguments)
    if set(arguments.lag) != {NO_LAG}:
        check_sizes(plan)
    copied, lags = with_copied_weights(plan), _lags(arguments.lag, plan)
    if arguments.trace is not None:
        _write_trace(plan, lags, seconds, arguments)
    rows = [_row(plan, lag, seconds, arguments, copied) for lag in lags]
    if machine(arguments):
        show_json([asdict(row) for row in rows])
    else:
        say(_table(plan, rows, arguments))
        lag = _largest(rows)
        say(f"\nif calls took their median times, lag {lag}: {bottleneck(plan, seconds, lag)}")
        if _gains(rows) and copied is not None:
            say(f"{COPIED}: with {copied}, so that no sync waits for earlier calls")


def _largest(rows: Sequence[LagRow]) -> int:
    return max(row.lag or 0 for row in rows)


def _with_utilization(
    plan: CompiledPlan, seconds: Mapping[str, CallSeconds], arguments: argparse.Namespace
) -> Mapping[str, CallSeconds]:
    """The durations with the shares of the command line, which come before those of a file.

    Raises:
        UsageError: for a name that no call has, or what is no share.
    """
    changed: dict[str, dict[str, Any]] = {}
    for name in UTILIZATIONS:
        for label, share in by_label(plan, _shares_by_call(name, arguments)).items():
            changed.setdefault(label, {})[name] = share
    timed = dict(seconds)
    for label, shares in changed.items():
        call_seconds = timed.get(label)
        if isinstance(call_seconds, (DrawnSeconds, RecordedSeconds)):
            try:
                timed[label] = replace(call_seconds, **shares)
            except WiringError as error:
                raise UsageError(f"'{label}': {error.message}") from None
    return timed


def _shares_by_call(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The shares of an option.

    Raises:
        UsageError: for what is no share.
    """
    shares = dict[str, float]()
    for text in getattr(arguments, name):
        call, _, share = text.rpartition("=")
        try:
            shares[call] = float(share)
            Utilization(utilization=shares[call])
        except (ValueError, WiringError):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} takes CALL=SHARE, with a share from 0 to 1, got '{text}'") from None
    return shares


def _with_late(plan: CompiledPlan, late: Late) -> CompiledPlan:
    """The plan with another discipline for its queues.

    Raises:
        CheckError: with what the check finds in the same program with this discipline, if these are errors.
    """
    nodes = tuple(
        replace(node, op=replace(node.op, late=late)) if isinstance(node.op, Queue) and node.op.splits else node
        for node in plan.graph.nodes
    )
    graph, start = replace(plan.graph, nodes=nodes), perf_counter()
    report = build_report(context_of(plan, graph), start, repairs=False)
    if not report.ok:
        raise CheckError(replace(report, facts=f" with --late {late}{report.facts}"))
    return with_graph(plan, graph)


def _lags(texts: Sequence[str], plan: CompiledPlan) -> list[int | None]:
    """The lags of the command line; without any, the usual ones that the queues have places for."""
    regroups = out_of_step(plan)
    if not texts:
        usual = sorted({0, 1, 2, 4, 8} | {queue.lag or 0 for _, queue in plan.split.queues})
        return [*([] if regroups else [None]), *(lag for lag in usual if _has_places(with_lag(plan, lag)))]
    try:
        lags = [None if text == NO_LAG else int(text) for text in texts]
    except ValueError:
        raise UsageError(f"--lag takes numbers and '{NO_LAG}', got {', '.join(map(repr, texts))}") from None
    if any(lag is not None and lag < 0 for lag in lags):
        raise UsageError("--lag takes numbers of at least 0")
    if regroups and None in lags:
        without = f"without its queues '{plan.name}' is another program, since a batch is not what a step puts in"
        raise UsageError(f"{without}: '--lag {NO_LAG}' does not go with it")
    return list(dict.fromkeys(lags))


def _has_places(plan: Plan) -> bool:
    """Whether the queues have places for a step, if they decide."""
    if not decides(plan):
        return True
    try:
        queue_specs(queue_stages(plan), plan.dims)
    except SizeError:
        return False
    return True


def _row(
    plan: CompiledPlan,
    lag: int | None,
    seconds: Mapping[str, CallSeconds],
    arguments: argparse.Namespace,
    copied: CopiedWeights | None,
) -> LagRow:
    simulated = with_lag(plan, lag)
    run = _simulate(simulated, seconds, arguments)
    return LagRow(
        lag=lag,
        late=[queue.late for _, queue in simulated.split.queues if queue.late is not None],
        seconds=run.seconds,
        copied_seconds=_copied_seconds(copied, lag, seconds, arguments, run.seconds),
        staleness=_shares(run.staleness),
        dropped=run.dropped,
        lost=run.lost,
        idle=run.idle,
    )


def _write_trace(
    plan: CompiledPlan, lags: Sequence[int | None], seconds: Mapping[str, CallSeconds], arguments: argparse.Namespace
) -> None:
    """Write the timelines of the simulated steps.

    Raises:
        UsageError: for several lags, or a file that cannot be written.
    """
    if len(lags) > 1:
        raise UsageError("--trace has the steps of one lag: name one with --lag")
    check_writable(arguments.trace)
    with TraceFile(arguments.trace) as file:
        _simulate(with_lag(plan, lags[0]), seconds, arguments, file)


def _simulate(
    plan: Plan, seconds: Mapping[str, CallSeconds], arguments: argparse.Namespace, trace: TraceFile | None = None
) -> PlanSimulation:
    keep = 1.0 if arguments.keep is None else arguments.keep
    return simulate_run(plan, seconds, arguments.steps, seed=arguments.seed, keep=keep, trace=trace)


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
    run = _simulate(with_lag(copied.plan, lag), seconds, arguments)
    return run.seconds if run.seconds < (1 - SAME) * waiting else None


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
        *_lines_by_queue("dropped", [row.dropped for row in rows]),
        *_lines_by_queue("lost to filters", [row.lost for row in rows]),
        *((f"idle: {group}", [_percent(row.idle.get(group)) for row in rows]) for group in idle),
    ]
    width = max(len(label) for label, _ in lines)
    table = [f"{label:{width}}  {_cells(cells)}".rstrip() for label, cells in lines]
    return "\n".join([f"{plan.name}: {arguments.steps} steps, {_schedule(rows)}", "", *table])


def _lines_by_queue(label: str, shares: Sequence[Mapping[str, float]]) -> Iterable[tuple[str, list[str]]]:
    """A line for each queue, named if there are several."""
    queues = list(dict.fromkeys(queue for by_queue in shares for queue in by_queue))
    for queue in queues:
        name = label if len(queues) == 1 else f"{label}: {queue}"
        yield name, [_percent(by_queue.get(queue)) for by_queue in shares]


def _gains(rows: Sequence[LagRow]) -> bool:
    return any(row.copied_seconds is not None for row in rows)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.4g}"


def _schedule(rows: Sequence[LagRow]) -> str:
    """The simulated schedule, in words."""
    disciplines = next((row.late for row in rows if row.late), ())
    if not any(row.dropped for row in rows):
        return "batches in order, as runs take them"
    return "groups as runs take them, " + ", ".join(f'late="{late}"' for late in dict.fromkeys(disciplines))


def _cells(cells: Iterable[str]) -> str:
    return "  ".join(f"{cell:>7}" for cell in cells)


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"
