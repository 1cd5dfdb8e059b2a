"""Step timing: how long a step of a program with queues takes by simulation, and which lags make none faster.

An example is in ``check/rules/queues/spare_lags.py``. Smaller lags are tried from 0 on, one queue at a time. Calls draw
the same durations with every lag, so long tails count: a lag that evens them out is not spare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from hfdsl.check.context import Context
from hfdsl.check.report import Report
from hfdsl.check.timing import SpareLag, StepTime
from hfdsl.errors import HfError
from hfdsl.plan.build import plan_of
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.plan import Plan
from hfdsl.plan.throughput import Throughput, throughput
from hfdsl.plan.weight_senders import with_copied_weights
from hfdsl.runtime.queues.durations import CallSeconds, DrawnSeconds, RecordedSeconds, Utilization
from hfdsl.runtime.queues.plan_simulation import PlanSimulation, with_lag
from hfdsl.runtime.queues.queue_simulation import simulate_run

STEPS = 200
"""The number of simulated steps, as in ``hfdsl simulate``."""

SAME = 0.01
"""The share of a step's time that is no difference."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """The timing of placed programs; ``seconds`` gives the durations of a plan's calls."""

    seconds: Callable[[CompiledPlan], Mapping[str, CallSeconds]]

    def step_time(self, context: Context) -> StepTime:
        """Time a program with queues that has no errors.

        Raises:
            SizeError: HF301 for a size that decides the number of groups and is unknown.
        """
        plan = plan_of(context, Report(context.program.graph.name), Optimize())
        seconds = self.seconds(plan)
        run = simulate_run(plan, seconds, STEPS)
        spare = tuple(spare_lags(plan, seconds, run))
        copied = _with_copies(plan, seconds, run) if spare else ""
        return StepTime(run.seconds, STEPS, str(bottleneck(plan, seconds).cycle), spare, copied)


def _with_copies(plan: Plan, seconds: Mapping[str, CallSeconds], run: PlanSimulation) -> str:
    """How fast steps are with copied weights, in words; empty if no faster."""
    copied = with_copied_weights(plan)
    seconds_per_step = None if copied is None else _simulated(copied.plan, seconds, len(run.results))
    if copied is None or seconds_per_step is None or seconds_per_step >= (1 - SAME) * run.seconds:
        return ""
    return f"{seconds_per_step:.4g} s with {copied}"


def spare_lags(plan: Plan, seconds: Mapping[str, CallSeconds], run: PlanSimulation) -> Iterator[SpareLag]:
    """The queues of a plan whose lags make no step faster; ``run`` is its simulation.

    Each queue is tried with the least lags of those before it, so that steps are as fast with all of them together.
    """
    for node, queue in plan.split.queues:
        for lag in range(queue.lag or 0):
            smaller = with_lag(plan, lag, node.id)
            seconds_per_step = _simulated(smaller, seconds, len(run.results))
            if seconds_per_step is not None and seconds_per_step <= (1 + SAME) * run.seconds:
                yield SpareLag(node.id, lag)
                plan = smaller
                break


def _simulated(plan: Plan, seconds: Mapping[str, CallSeconds], steps: int) -> float | None:
    """The seconds of a step; None if a queue has no places for a step, or starves."""
    try:
        return simulate_run(plan, seconds, steps).seconds
    except HfError:
        return None


def bottleneck(plan: Plan, seconds: Mapping[str, CallSeconds], lag: int | None = None) -> Throughput:
    """The bottleneck with the lags of the queues, or one for all, computed from the median duration of each call."""
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
        interference={label: share.sharing.interference for label, share in shares.items()},
        engine_utilization={label: share.engine_utilization for label, share in shares.items()},
    )
