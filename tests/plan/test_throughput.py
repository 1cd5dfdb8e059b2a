"""Seconds of a step from the slowest cycle, against the virtual clock of the simulator, which knows no graph."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.throughput import throughput
from hfdsl.runtime.queues.plan_simulation import DrawnSeconds, simulate_plan, with_lag
from tests.nightly import examples
from tests.rl.dataflows.programs import SIZES
from tests.rl.dataflows.test_asynchronous import FLOWS, placed

CALLS = (
    "sampler.generate",
    "reward.score",
    "reference.log_probs",
    "actor.log_probs",
    "group_advantages",
    "actor.update#1",
    "actor.update#2",
    "actor.weights",
    "sampler.load",
    "outcome",
)


@cache
def plan_of(name: str, lag: int = 1) -> CompiledPlan:
    flow = FLOWS[name].given(lag=lag)
    return flow.compile(placed(flow), SIZES)


def simulated(plan: CompiledPlan, seconds: dict[str, float], lag: int) -> float:
    """Seconds of a step, long after the start and before the end."""
    call_seconds = {name: DrawnSeconds(duration) for name, duration in seconds.items()}
    results = simulate_plan(with_lag(plan, lag), call_seconds, 160).results
    return (results[140] - results[80]) / 60


@settings(max_examples=examples(100))
@given(st.fixed_dictionaries({call: st.integers(0, 20) for call in CALLS}), st.integers(0, 4))
def test_the_slowest_cycle_sets_the_pace(durations: dict[str, int], lag: int) -> None:
    seconds = {call: float(duration) for call, duration in durations.items()}
    predicted = throughput(plan_of("grpo"), seconds, lag)
    assert simulated(plan_of("grpo"), seconds, lag) == pytest.approx(predicted.seconds, rel=0.02, abs=1e-6)
    assert predicted.enough_lag is not None
    with_more = throughput(plan_of("grpo"), seconds, predicted.enough_lag + 3).seconds
    assert throughput(plan_of("grpo"), seconds, predicted.enough_lag).seconds == pytest.approx(with_more)
    if predicted.enough_lag:
        assert throughput(plan_of("grpo"), seconds, predicted.enough_lag - 1).seconds > with_more


def test_what_is_slow_is_named() -> None:
    seconds = {"sampler.generate": 41.0, "sampler.load": 1.0, "actor.update#1": 9.0, "actor.update#2": 9.0}
    apart, together = throughput(plan_of("grpo"), seconds), throughput(plan_of("grpo"), seconds, lag=0)
    assert str(apart).startswith("sampler.generate + ")
    assert str(apart).endswith(" 42 s; more lag than 1 gains nothing")
    assert together.seconds == 60


def test_functions_behind_a_queue_run_where_its_reader_does() -> None:
    """In processes of the engine they would wait for what it generates for later steps."""
    for name in FLOWS:
        plan = plan_of(name)
        behind = {step.group for step in plan.steps if plan.split.of[step.node] == 1 and step.role is None}
        assert behind == {step.group for step in plan.steps if step.role == "actor"}


def test_a_plan_without_queues_has_no_cycles() -> None:
    with pytest.raises(ValueError, match="one after another"):
        throughput(with_lag(plan_of("grpo"), None), {})
