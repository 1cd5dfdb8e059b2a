"""Simulated runs of plans with queues, against recurrences by hand and the durations of one node after another."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.timeline import Interval, Timeline
from hfdsl.runtime.queues.plan_simulation import (
    CallSeconds,
    DrawnSeconds,
    RecordedSeconds,
    recorded_seconds,
    simulate_groups,
    simulate_plan,
    with_lag,
)
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing import check_decisions
from tests.runtime.queue_programs import Actor, B, Engine, Judge, deployment, flow

seconds = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def single() -> hf.Deployment:
    return hf.Deployment(
        **{
            name: hf.place(role, pool=hf.ResourcePool([1], use_gpu=False, name=name))
            for name, role in {"engine": Engine, "judge": Judge, "actor": Actor}.items()
        }
    )


@cache
def plan(lag: int, place: Callable[[], hf.Deployment] = deployment) -> CompiledPlan:
    return flow.given(lag=lag, late="wait").compile(place(), dims={B: 4})


class InOrder:
    """Call number i of a step takes entry i modulo their number."""

    def __init__(self, entries: list[int]) -> None:
        self.entries = entries

    def of(self, *call: object) -> float:
        return float(self.entries[int(str(call[2])) % len(self.entries)])


@settings(deadline=None)
@given(st.integers(0, 4), seconds, seconds, seconds)
def test_a_chain_of_single_ranks_follows_the_recurrence(
    lag: int, generate: list[int], score: list[int], update: list[int]
) -> None:
    takes = {"engine.generate": InOrder(generate), "judge.score": InOrder(score), "actor.update": InOrder(update)}
    simulated = simulate_plan(with_lag(plan(1, single), lag), takes, 12)
    generated, scored, updated = [0.0], [0.0], [0.0]  # ends, after one before the first step
    for step in range(12):
        weights = updated[max(0, step - lag)]
        generated.append(max(generated[-1], weights) + takes["engine.generate"].of(0, "", step))
        scored.append(max(scored[-1], generated[-1]) + takes["judge.score"].of(0, "", step))
        updated.append(max(updated[-1], scored[-1]) + takes["actor.update"].of(0, "", step))
    assert list(simulated.results) == updated[1:]
    check_decisions(QueueSpec("queue", lag), simulated.decisions)
    assert max(simulated.staleness) == min(lag, 11)


def test_without_a_lag_nodes_run_one_after_another() -> None:
    takes = {"engine.generate": DrawnSeconds(4.0), "judge.score": DrawnSeconds(1.0), "actor.update": DrawnSeconds(3.0)}
    simulated = simulate_plan(with_lag(plan(2, single), None), takes, 5)
    assert simulated.results == (8.0, 16.0, 24.0, 32.0, 40.0)
    assert simulated.idle == {"engine": 0.5, "judge": 1 - 5 / 40, "actor": 1 - 15 / 40}
    assert not simulated.staleness


def test_a_slow_rank_holds_up_the_one_that_waits_for_weights() -> None:
    """The worked example of the module: engine 0 takes 4 s, engine 1 takes 2 s, an update 3 s."""

    class BySlot:
        def of(self, *call: object) -> float:
            return 2.0 if call[-1] == 1 else 4.0

    takes: dict[str, CallSeconds] = {"engine.generate": BySlot(), "actor.update": DrawnSeconds(3.0)}
    simulated = simulate_plan(plan(1), takes, 6)
    assert simulated.results[:2] == (7.0, 11.0)
    assert [b - a for a, b in zip(simulated.results, simulated.results[1:], strict=False)] == [4.0] * 5


def test_recorded_calls_of_ranks_that_work_together_count_from_the_last_start() -> None:
    calls = [Interval(("engine", rank), "call", "engine.generate", float(rank), 5.0 + rank) for rank in range(2)] + [
        Interval(("actor", rank), "call", "actor.update", 5.0 + rank, 8.0) for rank in range(2)
    ]
    measured = recorded_seconds(plan(1), [Timeline("flow", 0, 0.0, 9.0, tuple(calls))])
    assert measured == {
        "engine.generate": RecordedSeconds((5.0, 5.0)),
        "actor.update": RecordedSeconds((2.0,)),
    }


def test_drawn_durations_have_the_median_and_the_tail() -> None:
    durations = sorted(DrawnSeconds(2.0, tail=10.0).of(call) for call in range(4000))
    assert durations[2000] == pytest.approx(2.0, rel=0.1)
    assert durations[3960] == pytest.approx(20.0, rel=0.25)


def test_groups_one_by_one_are_dropped_where_they_are_late() -> None:
    takes = {"engine.generate": DrawnSeconds(4.0, tail=10.0), "actor.update": DrawnSeconds(1.0)}
    outcome = simulate_groups(plan(1), "drop", groups=4, slots=16, seconds=takes, steps=60)
    check_decisions(outcome.spec, outcome.decisions)
    assert 0 < outcome.dropped_share < 1
    assert max(outcome.staleness) <= 1
