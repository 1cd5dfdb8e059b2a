"""Seconds of a step from the slowest cycle, against the virtual clock of the simulator, which knows no graph."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import WiringError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.throughput import throughput
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.durations import DrawnSeconds
from hfdsl.runtime.queues.plan_simulation import simulate_plan, with_lag
from hfdsl.runtime.queues.queue_simulation import simulate_run
from tests.nightly import examples
from tests.rl.dataflows.programs import SIZES
from tests.rl.dataflows.test_asynchronous import FLOWS, placed
from tests.runtime import stage_programs
from tests.runtime.queue_programs import Actor, B, Engine, Judge, Prompts, Samples, Scored, Scores, deployment
from tests.runtime.stage_programs import deciding, sampling, stage_deployment

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


@cache
def on_one_device() -> CompiledPlan:
    """Every role in processes of its own, all of them on one device."""
    flow, device = FLOWS["grpo"].given(lag=1), hf.ResourcePool([1], use_gpu=False, name="device")
    places = {name: replace(place, pool=device, colocate=False) for name, place in placed(flow).placements.items()}
    return flow.compile(hf.Deployment(**places), SIZES)


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


@settings(max_examples=examples(100))
@given(
    st.fixed_dictionaries({call: st.integers(0, 20) for call in CALLS}),
    st.fixed_dictionaries({call: st.sampled_from([0.0, 0.25, 0.5, 1.0]) for call in CALLS}),
    st.fixed_dictionaries({call: st.sampled_from([0.0, 0.5, 1.0]) for call in CALLS}),
    st.integers(0, 4),
)
def test_no_step_is_faster_than_the_slowest_cycle_or_device(
    durations: dict[str, int], utilization: dict[str, float], of_it: dict[str, float], lag: int
) -> None:
    """Where calls cannot slow each other down, it is the pace."""
    plan, seconds = on_one_device(), {call: float(duration) for call, duration in durations.items()}
    interference = {call: utilization[call] * of_it[call] for call in CALLS}
    predicted = throughput(plan, seconds, lag, utilization=utilization, interference=interference)
    takes = {
        call: DrawnSeconds(seconds[call], utilization=utilization[call], interference=interference[call])
        for call in CALLS
    }
    run = simulate_plan(with_lag(plan, lag), takes, 160)
    assert run.end >= 160 * predicted.seconds - 1e-6
    of_processes: dict[str, float] = {}
    for step in plan.steps:
        if seconds[step.label]:
            of_processes[step.group] = max(of_processes.get(step.group, 0.0), utilization[step.label])
    assert (predicted.enough_lag is None) == (sum(part > 0 for part in of_processes.values()) > 1)
    if predicted.enough_lag is not None:
        assert (run.results[140] - run.results[80]) / 60 == pytest.approx(predicted.seconds, rel=0.02, abs=1e-6)


@hf.dataflow
def seen_early(
    prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, first: int = 1, second: int = 1
) -> tuple[Samples, Scores]:
    """Three stages, of which the first two make the results."""
    samples = engine.generate(prompts)
    read = hf.queue(samples, lag=first, late="wait")
    scores = judge.score(read)
    batch = hf.queue(hf.merge(Scored, read, scores), lag=second, late="wait")
    actor.update(batch)
    hf.sync(actor, engine)
    return samples, scores


@settings(max_examples=examples(60), deadline=None)
@given(
    st.fixed_dictionaries({call: st.integers(0, 20) for call in ("engine.generate", "judge.score", "actor.update")}),
    st.integers(0, 2),
    st.integers(1, 3),
)
def test_results_of_earlier_stages_are_those_of_earlier_rounds(
    durations: dict[str, int], first: int, second: int
) -> None:
    flow = seen_early.given(first=first, second=second)
    plan = flow.compile(deployment(), dims={B: 4})
    seconds = {call: float(duration) for call, duration in durations.items()}
    results = simulate_plan(plan, {call: DrawnSeconds(taken) for call, taken in seconds.items()}, 160).results
    assert (results[140] - results[80]) / 60 == pytest.approx(throughput(plan, seconds).seconds, rel=0.02, abs=1e-6)


def test_a_device_is_named_with_the_seconds_that_its_calls_keep_it_busy() -> None:
    seconds = {"sampler.generate": 6.0, "actor.update#1": 4.0, "actor.update#2": 4.0}
    alone = throughput(on_one_device(), seconds, lag=4)
    assert alone.seconds == 14
    assert str(alone).endswith(" 14 s")
    assert throughput(on_one_device(), seconds, lag=4, utilization={"sampler.generate": 0.5}).seconds == 11
    assert throughput(on_one_device(), seconds, lag=4, utilization={"sampler.generate": 0.0}).seconds == 8
    side_by_side = {"utilization": {"sampler.generate": 0.5}, "interference": {"sampler.generate": 0.25}}
    assert throughput(on_one_device(), seconds, lag=4, **side_by_side).seconds == 9.5


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
    with pytest.raises(WiringError, match=r"HF992: .* one after another"):
        throughput(with_lag(plan_of("grpo"), None), {})


STAGES = ("engine.generate", "judge.score", "actor.update")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.fixed_dictionaries({call: st.integers(0, 20) for call in STAGES}),
    st.sampled_from([1, 2, 3, 6, 8, 12]),
    st.sampled_from(["wait", "drop", "refill"]),
    st.integers(4, 6),
)
def test_no_step_with_batches_of_several_steps_is_faster_than_the_busiest_process(
    durations: dict[str, int], rows: int, late: Late, lag: int
) -> None:
    plan = deciding.given(rows=rows, late=late, lag=lag).compile(stage_deployment(), dims={stage_programs.B: 4})
    seconds = {call: float(duration) for call, duration in durations.items()}
    predicted = throughput(plan, seconds)
    assert predicted.enough_lag is None
    work = {**{call: durations[call] * rows / 4 for call in STAGES[:2]}, STAGES[2]: durations[STAGES[2]]}
    assert predicted.seconds == pytest.approx(max(work.values()))
    results = simulate_run(plan, {call: DrawnSeconds(duration) for call, duration in seconds.items()}, 96).results
    pace = (results[95] - results[47]) / 48  # whole dispatches and whole batches
    assert pace >= predicted.seconds - 1e-6
    if sum(map(bool, durations.values())) == 1:
        assert pace == pytest.approx(predicted.seconds)


def test_a_dispatch_of_several_batches_is_named_with_its_results() -> None:
    halves = deciding.given(rows=2, lag=2).compile(stage_deployment(), dims={stage_programs.B: 4})
    assert (
        str(throughput(halves, {"engine.generate": 41.0})) == "engine.generate + engine.load 41 s / 2 tokens = 20.5 s"
    )
    doubled = deciding.given(rows=8).compile(stage_deployment(), dims={stage_programs.B: 4})
    assert throughput(doubled, {"engine.generate": 41.0}).seconds == 82.0
    whole = deciding.given(rows=4).compile(stage_deployment(), dims={stage_programs.B: 4})
    assert throughput(whole, {"engine.generate": 3.0}).seconds == 3.0


def test_filters_are_taken_to_keep_every_group() -> None:
    plan = sampling.given(late="drop", drops=1).compile(stage_deployment(), dims={stage_programs.B: 4})
    predicted = throughput(plan, {"engine.generate": 3.0, "actor.update": 1.0})
    assert (predicted.seconds, predicted.enough_lag) == (3.0, None)


def test_batches_of_an_unknown_number_of_steps_have_no_pace() -> None:
    with pytest.raises(WiringError, match=r"HF992: .* dims say of how many steps it is; compile with dims="):
        throughput(deciding.given(rows=8).compile(stage_deployment()), {})


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (
            {"seconds": {"sampler.genrate": 1.0}},
            "seconds= .* has no call 'sampler.genrate'; did you mean 'sampler.generate'",
        ),
        ({"seconds": {"sampler.generate": -1.0}}, "'sampler.generate' takes a number of at least 0, got -1.0"),
        ({"seconds": {"sampler.generate": float("nan")}}, "takes a number of at least 0, got nan"),
        ({"utilization": {"actor": 0.5}}, "utilization= of throughput: .* has no call 'actor'"),
        ({"utilization": {"sampler.generate": 1.5}}, "takes a number from 0 to 1, got 1.5"),
        ({"seconds": {"sampler.generate": "1"}}, "'sampler.generate' takes a number of at least 0, got '1'"),
        ({"seconds": {3: 1.0}}, "has no call '3'"),
        ({"seconds": [1.0]}, r"seconds= of throughput takes a dict of calls, got \[1.0\]"),
        ({"interference": {"sampler.generate": 1.5}}, "interference= .* from 0 to 1, got 1.5"),
        (
            {"utilization": {"sampler.generate": 0.5}, "interference": {"sampler.generate": 0.75}},
            "interference= of throughput: 'sampler.generate' takes at most its utilization, 0.5, got 0.75",
        ),
        ({"engine_utilization": {"sampler.generate": -0.5}}, "engine_utilization= .* from 0 to 1, got -0.5"),
    ],
)
def test_calls_that_do_not_exist_and_numbers_that_are_none_are_refused(numbers: dict[str, Any], text: str) -> None:
    with pytest.raises(WiringError, match=f"HF202: .*{text}"):
        throughput(plan_of("grpo"), **{"seconds": {}, **numbers})


@pytest.mark.parametrize("lag", [-1, 1.5, True, "2"])
def test_a_lag_is_a_number_of_updates(lag: Any) -> None:
    with pytest.raises(WiringError, match="HF740: throughput: lag= takes a whole number of updates, 0 or more, got"):
        throughput(plan_of("grpo"), {}, lag)


def test_only_a_compiled_plan_has_a_throughput() -> None:
    with pytest.raises(WiringError, match="HF206: throughput takes a compiled plan, got a Dataflow"):
        throughput(FLOWS["grpo"], {})  # type: ignore[arg-type]
