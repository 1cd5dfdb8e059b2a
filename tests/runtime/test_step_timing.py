"""The lags that make no step faster, by simulation, against the slowest cycle of the marked graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.check.run import check
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.throughput import throughput
from hfdsl.runtime.queues.durations import CallSeconds, DrawnSeconds
from hfdsl.runtime.queues.plan_simulation import with_lag
from hfdsl.runtime.queues.queue_simulation import simulate_run
from hfdsl.runtime.queues.step_timing import STEPS, StepTiming, spare_lags
from tests.check import prelude
from tests.nightly import examples
from tests.plan.test_throughput import CALLS, plan_of, seen_early
from tests.plan.test_weight_senders import Engine, Trainer, pool
from tests.runtime import stage_programs
from tests.runtime.queue_programs import B, deployment
from tests.runtime.stage_programs import deciding, stage_deployment


def spare(plan: CompiledPlan, seconds: Mapping[str, CallSeconds]) -> list[tuple[int, int]]:
    """By place of a queue, its least lag."""
    queues = [node.id for node, _ in plan.split.queues]
    run = simulate_run(plan, seconds, STEPS)
    return [(queues.index(lag.node), lag.least) for lag in spare_lags(plan, seconds, run)]


@settings(max_examples=examples(60), deadline=None)
@given(st.fixed_dictionaries({call: st.integers(0, 20) for call in CALLS}), st.integers(1, 4))
def test_the_least_lag_is_that_of_the_slowest_cycle(durations: dict[str, int], lag: int) -> None:
    plan, seconds = plan_of("grpo", lag), {call: float(duration) for call, duration in durations.items()}
    paces = [throughput(plan, seconds, smaller).seconds for smaller in range(lag + 1)]
    assume(paces[-1] > 0)
    least = next(smaller for smaller, pace in enumerate(paces) if pace <= paces[-1] * 1.0001)
    assume(all(pace > 1.1 * paces[-1] for pace in paces[:least]))  # the first steps of 200 are no such difference
    drawn = {call: DrawnSeconds(duration) for call, duration in seconds.items()}
    assert spare(plan, drawn) == ([(0, least)] if least < lag else [])


def test_several_queues_are_as_fast_with_the_least_lags_of_all() -> None:
    """With one of them as it is, the other would need no lag at all."""
    takes_six = DrawnSeconds(6.0)
    seconds = dict.fromkeys(("engine.generate", "judge.score", "actor.update"), takes_six)

    plan = seen_early.given(first=3, second=3).compile(deployment(), {B: 4})
    nodes = [node.id for node, _ in plan.split.queues]

    def pace(first: int, second: int) -> float:
        changed = with_lag(with_lag(plan, first, nodes[0]), second, nodes[1])
        return simulate_run(changed, seconds, STEPS).seconds

    own, least_lags = pace(3, 3), dict(spare(plan, seconds))
    first, second = (least_lags.get(place, 3) for place in (0, 1))
    assert pace(first, second) <= 1.01 * own
    assert pace(first, second - 1) > 1.01 * own
    assert first == 0 or pace(first - 1, 3) > 1.01 * own
    assert pace(0, 3) <= 1.01 * own
    assert pace(0, 0) > 1.01 * own


@hf.dataflow
def trained(prompts: prelude.Prompts, engine: Engine, trainer: Trainer) -> prelude.Rollout:
    result = trainer.update(hf.queue(engine.generate(prompts), lag=4, late="wait"))
    hf.sync(trainer, engine)
    return result


def placed(transport: str | None) -> hf.Deployment:
    trainer = hf.place(Trainer, pool=pool("trainers"))
    if transport == "object store":
        trainer = replace(trainer, transport="object store")
    return hf.Deployment(engine=hf.place(Engine, pool=pool("engines")), trainer=trainer)


def test_a_lag_that_evens_out_long_tails_is_not_spare() -> None:
    """Unless the trainer waits in each sync for the engine's earlier calls, so that no lag can."""
    seconds = {"engine.generate": DrawnSeconds(4.0, tail=8.0), "trainer.update": DrawnSeconds(5.5)}
    assert spare(trained.compile(placed("object store"), {prelude.B: 64}), seconds) == []
    assert spare(trained.compile(placed(None), {prelude.B: 64}), seconds) == [(0, 1)]
    reports = [
        check(trained.body, placed(transport), {prelude.B: 64}, timing=StepTiming(lambda plan: seconds))
        for transport in (None, "object store")
    ]
    assert [report.codes for report in reports] == [("HF759",), ()]
    copied = reports[1].facts.partition(" s per step")[0].rpartition(" ")[2]
    assert f'{copied} s with transport="cuda ipc" in the placement of trainer' in reports[0].findings[0].notes[1]


def test_a_lag_that_a_queue_needs_for_its_places_is_not_spare() -> None:
    """A step puts in 4 rows and a batch has 2, so with a lag of 0 there are no places for a step."""
    plan = deciding.given(rows=2, lag=4).compile(stage_deployment(), dims={stage_programs.B: 4})
    seconds = {step.label: DrawnSeconds(1.0 if step.role == "actor" else 0.0) for step in plan.steps}
    [(_, least)] = spare(plan, seconds)
    assert least >= 1
    assert simulate_run(with_lag(plan, least), seconds, 10).results


def test_a_report_has_the_time_of_a_step_unless_it_has_errors() -> None:
    def timed(body: Callable[..., Any], *sizes: int) -> hf.Report:
        seconds = {"engine.generate": DrawnSeconds(41.0), "trainer.update": DrawnSeconds(18.0)}
        return check(body, placed(None), {prelude.B: sizes}, timing=StepTiming(lambda plan: seconds))

    report = timed(trained.body, 64)
    assert report.codes == ("HF759",)
    assert "s per step, longest engine.generate + engine.load" in report.facts
    assert [fix.edits[0].text for fix in report.findings[0].fixes] == ["1"]
    several = timed(trained.body, 64, 32)
    assert (several.codes, "per step" in several.facts) == ((), False)

    @hf.dataflow
    def cut(prompts: prelude.Prompts, engine: Engine, trainer: Trainer) -> prelude.Rollout:
        result = trainer.update(hf.queue(engine.generate(prompts), lag=4, late="wait", group=7))
        hf.sync(trainer, engine)
        return result

    report = timed(cut.body, 64)
    assert report.codes == ("HF745",)
    assert "per step" not in report.facts
