"""Simulated runs of dynamic queues: against runs, steps in order, and a schedule by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings

import hfdsl as hf
from hfdsl.errors import HfError, SizeError, WiringError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.timeline import TraceFile, read_trace
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.durations import DrawnSeconds, RecordedSeconds
from hfdsl.runtime.queues.plan_simulation import simulate_plan
from hfdsl.runtime.queues.queue_simulation import simulate_run
from hfdsl.testing import check_decisions, check_prompts
from tests.nightly import examples
from tests.runtime import in_flight_programs
from tests.runtime.network_model import Network, deployment, networks
from tests.runtime.stage_model import decisions
from tests.runtime.stage_programs import Actor, B, Engine, GivenSeconds, Judge, Prompts, Scored, deciding, prompts
from tests.runtime.test_stage_networks import BESIDE, JOINED, SERIES, WAITING

# Late groups are dispatched again after the loader has ended.
REPEATED = replace(SERIES, lates=("drop", "refill"), batches=(2, 1), generation=((1, 1),), judging=((1, 3),))
REPEATED = replace(REPEATED, updates=(1,), fits=(1,), steps=5)


@settings(max_examples=examples(20), deadline=None)
@given(networks())
@example(SERIES)
@example(BESIDE)
@example(JOINED)
@example(WAITING)
@example(REPEATED)
def test_a_simulation_decides_what_a_run_decides(case: Network) -> None:
    case = replace(case, drops=None)  # a simulation draws what a filter keeps
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with case.launched() as running:
            list(running.stream(case.loader(), log=log, seconds=case.seconds))
        decided = decisions(log)
    simulated = simulate_run(case.compiled(), case.seconds, steps=2 * case.steps * case.dispatch, seed=3)
    until = min(_last_dispatch(decided, case.specs[queue].name) for queue in _loaded(case)) + 1  # the loader ends then
    until = min(until, _loader_ends(case, simulated.decisions))  # or before, and late groups are dispatched again
    assert decided[:until] == list(simulated.decisions[:until])


def _loaded(case: Network) -> list[int]:
    """The queues into which prompts of the loader go."""
    return [queue for stage in case.links.sources for queue in case.links.fed_by(stage)]


def _loader_ends(case: Network, simulated: Sequence[Decision]) -> int:
    """The first decision that takes a prompt which the loader does not have."""
    loaded, prompts_of_loader = {case.specs[queue].name for queue in _loaded(case)}, case.steps * case.dispatch
    return next(
        (
            i
            for i, decision in enumerate(simulated)
            if decision.kind == "dispatch"
            and decision.queue in loaded
            and max(decision.prompts, default=0) >= prompts_of_loader
        ),
        len(simulated),
    )


def _last_dispatch(decided: Sequence[Decision], queue: str) -> int:
    return max(i for i, decision in enumerate(decided) if decision.kind == "dispatch" and decision.queue == queue)


def lagged(lag: int, late: Late, dispatched: int = 4) -> CompiledPlan:
    """Two ranks of the engine, and of the judge, make a half of each dispatch each."""
    return deciding.given(lag=lag, late=late).compile(deployment("series"), dims={B: dispatched})


def test_the_worked_example(tmp_path: Path) -> None:
    """Group 2, which rank 0 makes from 4 to 8 s under version 0, is two updates late when it ends."""
    seconds = {"engine.generate": GivenSeconds([(4.0, 2.0)]), "actor.update": GivenSeconds([(1.0,)])}
    with TraceFile(tmp_path / "trace") as trace:
        simulated = simulate_run(lagged(1, "drop", dispatched=2), seconds, steps=2, trace=trace)
    taken = [(decision.version, decision.groups) for decision in simulated.decisions if decision.kind == "take"]
    assert taken == [(0, (0, 1)), (1, (3, 5))]
    assert simulated.results == (5.0, 8.0)
    assert simulated.staleness == {0: 3, 1: 1}
    calls: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for call in (call for step in read_trace((tmp_path / "trace").read_text()) for call in step.calls):
        calls.setdefault((call.name, call.process[1]), []).append((call.start, call.stop))
    assert calls["engine.generate", 0] == [(0.0, 4.0), (4.0, 8.0)]
    assert calls["engine.generate", 1] == [(0.0, 2.0), (2.0, 4.0), (5.0, 7.0)]
    assert calls["actor.update", 0] == [(4.0, 5.0), (7.0, 8.0)]
    later = simulate_run(lagged(1, "drop", dispatched=2), seconds, steps=3).decisions
    assert [decision.groups for decision in later if decision.kind == "drop"] == [(2,)]


@pytest.mark.parametrize("lag", [1, 2, 4])
@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_weights_in_flight_under_wait_take_as_long_as_steps_in_order(lag: int, at_once: int) -> None:
    places = in_flight_programs.flight_deployment(at_once=at_once)
    dims = {in_flight_programs.B: 4, in_flight_programs.R: in_flight_programs.TOKENS}
    plan = in_flight_programs.in_flight.given(lag=lag, late="wait").compile(places, dims=dims)
    seconds = {
        "engine.generate": DrawnSeconds(10.0, tail=3.0, engine_utilization=0.7),
        "actor.update": DrawnSeconds(6.0),
    }
    in_order, decided = simulate_plan(plan, seconds, 40), simulate_run(plan, seconds, 40 - lag)
    assert decided.results == in_order.results[: 40 - lag]  # after which no more steps are dispatched in order


@pytest.mark.parametrize("late", ["drop", "refill", "mask"])
def test_late_groups_are_a_share_and_none_that_is_trained_is_later(late: Late) -> None:
    seconds = {"engine.generate": DrawnSeconds(4.0, tail=10.0), "actor.update": DrawnSeconds(1.0)}
    short, long = (simulate_run(lagged(lag, late), seconds, 60) for lag in (1, 8))
    for simulated, lag in ((short, 1), (long, 8)):
        assert 0 < simulated.dropped["queue"] < 1
        assert 1 <= max(simulated.staleness) <= lag
        assert not simulated.lost


@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_a_filter_loses_its_share(keep: float) -> None:
    case = replace(SERIES, drops=0, batches=(2, 2), lags=(2, 3))
    simulated = simulate_run(case.compiled(), case.seconds, 150, keep=keep)
    assert list(simulated.lost) == ["queue2"]
    assert simulated.lost["queue2"] == pytest.approx(1 - keep, abs=0.1)
    for spec in case.specs:
        check_decisions(spec, simulated.decisions)
    check_prompts(case.links, case.specs, simulated.decisions)


def test_a_queue_behind_a_filter_that_keeps_nothing_starves() -> None:
    case = replace(SERIES, drops=0, batches=(2, 2), lags=(2, 3))
    with pytest.raises(HfError, match=r"HF762: queue 'queue2' .* starves"):
        simulate_run(case.compiled(), case.seconds, 1, keep=0.0)


def test_rows_of_unknown_number_are_not_simulated() -> None:
    """Not as one group, say."""
    plan = deciding.given(lag=1, late="drop").compile(deployment("series"))
    with pytest.raises(
        SizeError, match="HF301: the rows in the queues of 'deciding' have dims without a size; compile"
    ):
        simulate_run(plan, {}, 1)


@pytest.mark.parametrize("late", ["wait", "drop"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"steps": -1}, "steps= of simulate_run is a whole number of at least 0, got -1"),
        ({"steps": 1.5}, "steps= of simulate_run is a whole number of at least 0, got 1.5"),
        ({"keep": 2.0}, "keep= of simulate_run is a number from 0 to 1, got 2.0"),
        (
            {"seconds": {"engine.genrate": 1.0}},
            "'deciding' has no call 'engine.genrate'; did you mean 'engine.generate'",
        ),
        ({"seconds": {"engine.generate": "1"}}, "'engine.generate' takes a number, 0 or more, or an object"),
        ({"seconds": 1.0}, "seconds= of simulate_run takes a dict of calls, got 1.0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(late: Late, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(WiringError, match=f"HF202: .*{text}"):
        simulate_run(lagged(2, late), **{"seconds": {}, "steps": 2, **arguments})


def test_only_a_compiled_plan_is_simulated() -> None:
    with pytest.raises(WiringError, match="HF206: simulate_run takes a compiled plan, got the dataflow 'deciding'"):
        simulate_run(deciding, {}, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("median", "tail"), [(-1.0, 1.0), (1.0, 0.5), (1.0, 0.0), (float("nan"), 1.0), ("4", 1.0)])
def test_a_distribution_has_a_median_and_a_tail(median: Any, tail: Any) -> None:
    with pytest.raises(WiringError, match="HF202: a duration takes a median of at least 0 seconds and a tail of"):
        DrawnSeconds(median, tail)


def test_recorded_durations_are_some() -> None:
    with pytest.raises(WiringError, match=r"HF202: recorded durations are a tuple of seconds, got \(\)"):
        RecordedSeconds(seconds=())


def test_a_number_is_the_time_of_every_call() -> None:
    seconds = {"engine.generate": 10.0, "actor.update": 1.0}
    drawn = {label: DrawnSeconds(duration) for label, duration in seconds.items()}
    assert simulate_run(lagged(2, "drop"), seconds, 5) == simulate_run(lagged(2, "drop"), drawn, 5)


def test_an_engine_that_is_never_idle_is_busy_to_the_end() -> None:
    """Also where its last call has not ended then: 10 s for each, and updates of 1 s."""
    seconds = {"engine.generate": DrawnSeconds(10.0), "actor.update": DrawnSeconds(1.0)}
    simulated = simulate_run(lagged(2, "drop"), seconds, 20)
    assert simulated.end == 20 * 10.0 + 1.0
    assert simulated.idle == {"engine": 0.0, "judge": 1.0, "actor": pytest.approx(1 - 20 / 201)}


@hf.dataflow
def returning_nothing(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, late: Late = "drop") -> None:
    """As ``deciding``, without its result."""
    samples = engine.generate(prompts)
    scored = hf.merge(Scored, prompts, samples, judge.score(samples))
    actor.update(hf.queue(scored, lag=3, late=late))  # hf: ignore[HF602]
    hf.sync(actor, engine)


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_updates_without_a_result_end_when_they_have_trained(late: Late, tmp_path: Path) -> None:
    """Not when engines have their weights, which they load after the calls that they were given before."""
    seconds = {"engine.generate": DrawnSeconds(4.0, tail=6.0), "actor.update": DrawnSeconds(5.0)}
    plan = returning_nothing.given(late=late).compile(deployment("series"), dims={B: 4})
    returning, silent = lagged(3, late), plan
    simulated = simulate_run(silent, seconds, 60)
    assert simulated.results == simulate_run(returning, seconds, 60).results
    logs = list[list[Decision]]()
    for compiled in (returning, silent):
        log = tmp_path / compiled.name
        with compiled.launch(backend="local", seed=0) as running:
            list(running.stream(prompts(20, 4), log=log, seconds=seconds))
        logs.append(decisions(log))
    assert logs[0] == logs[1]
    assert logs[1][:30] == list(simulated.decisions[:30])
