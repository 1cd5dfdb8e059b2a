"""What a plan lists as overlapping, against the driver: on a clock that its waits advance, those steps do overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, example, given, settings

from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.overlaps import overlaps
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.timeline import Timeline
from hfdsl.runtime.queues.durations import DrawnSeconds
from tests.nightly import examples
from tests.plan.oracle import B, Program, R, Rows, batch_of, programs, some_rows
from tests.plan.test_overlaps import PAIR_BEFORE_WEIGHTS, pairs
from tests.runtime.timed_backend import TimedBackend

many = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def timeline(plan: CompiledPlan, batch: Rows, seconds: Mapping[str, float]) -> Timeline:
    """A step, whose calls of these nodes take so long."""
    drawn = {label: DrawnSeconds(node_seconds) for label, node_seconds in seconds.items()}
    backends: list[TimedBackend] = []

    def timed(plan: Plan, seed: int, **_: Any) -> TimedBackend:
        backends.append(TimedBackend(plan, seed, drawn))
        return backends[0]

    with plan.launch(timed) as running:
        running.step(batch)
    intervals = tuple(backends[0].intervals)
    return Timeline(plan.name, 0, 0.0, max((call.stop for call in intervals), default=0.0), intervals)


@many
@given(programs())
@example(PAIR_BEFORE_WEIGHTS)
def test_what_a_plan_lists_as_overlapping_overlaps_in_a_run(program: Program) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2})
    seconds = {step.label: 1.0 for step in plan.steps if step.group != DRIVER}
    for together in overlaps(plan):
        long = [step.label for step in together]
        run = timeline(plan, batch_of(some_rows(program.rows)), seconds | dict.fromkeys(long, 1000.0))
        assert pairs([long]) <= run.overlaps
