"""Simulated runs of plans with queues, against recurrences by hand and the durations of one node after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.deploy.deployment import TransportName
from hfdsl.errors import WiringError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.timeline import Interval, Timeline
from hfdsl.plan.weight_senders import with_copied_weights
from hfdsl.protocols.layouts import Parameter, Replicas, Shards
from hfdsl.runtime.queues.durations import CallSeconds, DrawnSeconds, RecordedSeconds, Utilization
from hfdsl.runtime.queues.plan_simulation import recorded_seconds, simulate_plan, with_lag
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing import check_decisions
from tests.nightly import examples
from tests.runtime.queue_programs import (
    Actor,
    B,
    Engine,
    Judge,
    Prompts,
    Samples,
    branches,
    chain,
    deployment,
    flow,
    rows,
)

seconds = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def single() -> hf.Deployment:
    return hf.Deployment(
        **{
            name: hf.place(role, pool=hf.ResourcePool([1], use_gpu=False, name=name))
            for name, role in {"engine": Engine, "judge": Judge, "actor": Actor}.items()
        }
    )


def on_one_device() -> hf.Deployment:
    """The engine and the actor in processes of their own on one device."""
    device = hf.ResourcePool([1], use_gpu=False, name="device")
    return hf.Deployment(
        engine=hf.place(Engine, pool=device, colocate=False),
        judge=hf.place(Judge, pool=hf.ResourcePool([1], use_gpu=False, name="judge")),
        actor=hf.place(Actor, pool=device, colocate=False),
    )


@cache
def plan(lag: int, place: Callable[[], hf.Deployment] = deployment) -> CompiledPlan:
    return flow.given(lag=lag, late="wait").compile(place(), dims={B: 4})


class Sender(hf.Worker):
    """Two ranks that train half of the weights each."""

    @staticmethod
    def state_parameters() -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("weight", (8, 4))]}

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: Samples) -> Samples:
        return batch

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=Shards("dp"))
    def weights(self) -> dict[str, object]:
        return {}


class Receiver(hf.Worker):
    """An engine that has all of the weights."""

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        return Samples(x=prompts.x.tensor, version=prompts.x.tensor.long())

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Replicas())
    def load(self, weights: dict[str, object]) -> None: ...


@hf.dataflow
def exchanging(prompts: Prompts, engine: Receiver, actor: Sender) -> Samples:
    trained = actor.update(hf.queue(engine.generate(prompts), lag=1, late="wait"))
    hf.sync(actor, engine)
    return trained


@dataclass(frozen=True)
class InOrder(Utilization):
    """Call number i of a step takes entry i modulo their number."""

    entries: list[int] = field(default_factory=list)

    def of(self, *call: object) -> float:
        return float(self.entries[int(str(call[2])) % len(self.entries)])


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 2), (1, 2), (3, 1)])
def test_batches_of_queues_in_a_row_are_as_old_as_in_a_run(first: int, second: int) -> None:
    compiled = chain.given(first=first, second=second).compile(deployment(), dims={B: 4})
    with compiled.launch() as running:
        results = list(running.stream(rows(9)))
    staleness = Counter(int((trained.update.tensor - trained.version.tensor)[0]) for trained in results)
    assert simulate_plan(compiled, {}, 9).staleness == staleness
    assert max(staleness) == first + second


def test_batches_of_queues_side_by_side_count_each() -> None:
    compiled = branches.given(first=1, second=3).compile(deployment(), dims={B: 4})
    assert simulate_plan(compiled, {}, 9).staleness == {0: 2, 1: 16}, "the smaller lag bounds both"


@settings(deadline=None)
@given(st.integers(0, 4), seconds, seconds, seconds)
def test_a_chain_of_single_ranks_follows_the_recurrence(
    lag: int, generate: list[int], score: list[int], update: list[int]
) -> None:
    takes = {
        "engine.generate": InOrder(entries=generate),
        "judge.score": InOrder(entries=score),
        "actor.update": InOrder(entries=update),
    }
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


@cache
def exchanging_plan(transport: TransportName | None = None) -> CompiledPlan:
    """An engine that gets its weights from the memory of two ranks that train, or from copies by a transport."""
    deployment = hf.Deployment(
        engine=hf.place(Receiver, pool=hf.ResourcePool([1], use_gpu=False, name="engine")),
        actor=hf.place(Sender, pool=hf.ResourcePool([2], use_gpu=False, name="actor"), transport=transport),
    )
    return exchanging.compile(deployment, dims={B: 4})


@settings(deadline=None)
@given(st.integers(1, 4), seconds, seconds, seconds)
def test_who_sends_weights_from_where_it_trains_waits_for_their_reader(
    lag: int, generate: list[int], update: list[int], load: list[int]
) -> None:
    takes = {
        "engine.generate": InOrder(entries=generate),
        "actor.update": InOrder(entries=update),
        "engine.load": InOrder(entries=load),
    }
    simulated = simulate_plan(with_lag(exchanging_plan(), lag), takes, 12)
    generated, updated, loaded = [0.0], [0.0], [0.0]  # ends, after one before the first step
    for step in range(12):
        while len(generated) <= min(step + lag + 1, 12):  # a dispatch reads the weights of the last load before it
            begin = max(generated[-1], loaded[-1])
            generated.append(begin + takes["engine.generate"].of(0, "", len(generated) - 1))
        updated.append(max(loaded[-1], generated[step + 1]) + takes["actor.update"].of(0, "", step))
        loaded.append(max(updated[-1], generated[-1]) + takes["engine.load"].of(0, "", step))
    assert list(simulated.results) == updated[1:]


@settings(deadline=None)
@given(st.integers(1, 4), seconds, seconds, seconds)
def test_a_plan_with_copied_weights_is_that_of_the_transport(
    lag: int, generate: list[int], update: list[int], load: list[int]
) -> None:
    takes = {
        "engine.generate": InOrder(entries=generate),
        "actor.update": InOrder(entries=update),
        "engine.load": InOrder(entries=load),
    }
    copied = with_copied_weights(exchanging_plan())
    assert copied is not None
    compiled = exchanging_plan(copied.transport)
    of_both = [simulate_plan(with_lag(plan, lag), takes, 12) for plan in (copied.plan, compiled)]
    assert of_both[0].results == of_both[1].results


def test_weights_that_are_sent_from_where_they_train_couple_both_sides_at_any_lag() -> None:
    takes = {"engine.generate": InOrder(entries=[2, 2, 7, 7]), "actor.update": InOrder(entries=[4])}
    coupled, *free = (
        [simulate_plan(with_lag(compiled, lag), takes, 40).results for lag in (1, 4)]
        for compiled in (exchanging_plan(), exchanging_plan("object store"), plan(1, single))
    )
    seconds_per_step = [[(results[35] - results[15]) / 20 for results in of_plan] for of_plan in (coupled, *free)]
    assert seconds_per_step == [[5.5, 5.5], [5.5, 4.5], [5.5, 4.5]]


TICKS = 240
"""Of a second; a call that begins or ends within a tick does so at its end."""


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 3), seconds, seconds, st.sampled_from([0.25, 0.5, 0.75, 1.0]), st.sampled_from([0.25, 0.5, 1.0]))
@example(1, [6], [2], 0.5, 1.0)
def test_processes_on_one_device_slow_each_other_down_in_tiny_time_steps(
    lag: int, generate: list[int], update: list[int], of_engine: float, of_actor: float
) -> None:
    takes = {
        "engine.generate": InOrder(entries=generate, utilization=of_engine),
        "actor.update": InOrder(entries=update, utilization=of_actor),
    }
    steps, tick, results = 6, 0, list[float]()
    generated, left = 0, {"engine": 0.0, "actor": 0.0}  # ticks of work left
    generating = updating = False
    while len(results) < steps:
        if not generating and generated < steps and len(results) >= generated - lag:
            generating, left["engine"] = True, float(TICKS * generate[generated % len(generate)])
        if not updating and generated > len(results):
            updating, left["actor"] = True, float(TICKS * update[len(results) % len(update)])
        tick += 1
        # While both have kernels, with the probability of the product, each gets half of the device.
        slowdown = 1 + of_engine * of_actor if generating and updating else 1.0
        left["engine"] -= 1 / slowdown
        left["actor"] -= 1 / slowdown
        if generating and left["engine"] < 1e-6:
            generating, generated = False, generated + 1
        if updating and left["actor"] < 1e-6:
            updating = False
            results.append(tick / TICKS)
    simulated = simulate_plan(with_lag(plan(1, on_one_device), lag), takes, steps)
    assert simulated.results == pytest.approx(results, abs=2 * steps * 2 / TICKS)  # each call ends up to a tick late


@pytest.mark.parametrize(("utilization", "seconds_per_step"), [(1.0, 8.0), (0.75, 7.5), (0.5, 7.0), (0.0, 6.0)])
def test_a_device_that_is_idle_beside_the_host_is_used_by_others(utilization: float, seconds_per_step: float) -> None:
    """Updates of 2 s that always use it lose what generation of 6 s uses of it meanwhile, and generation as much."""
    takes = {"engine.generate": DrawnSeconds(6.0, utilization=utilization), "actor.update": DrawnSeconds(2.0)}
    results = simulate_plan(plan(2, on_one_device), takes, 20).results
    assert (results[15] - results[5]) / 10 == pytest.approx(seconds_per_step)


@pytest.mark.parametrize(("interference", "seconds_per_step"), [(0.5, 7.0), (0.25, 41 / 6), (0.0, 20 / 3)])
def test_kernels_side_by_side_slow_the_smaller_ones_down(interference: float, seconds_per_step: float) -> None:
    """Generation does 2/3 of a second's work beside an update, which takes 2 s and the interference of it longer."""
    generate = DrawnSeconds(6.0, utilization=0.5, interference=interference)
    results = simulate_plan(
        plan(2, on_one_device), {"engine.generate": generate, "actor.update": DrawnSeconds(2.0)}, 20
    ).results
    assert (results[15] - results[5]) / 10 == pytest.approx(seconds_per_step)


def test_ranks_that_train_together_are_as_slow_as_on_the_device_that_is_shared() -> None:
    """Beside 6 s of generation on one of two devices, an update of 2 s takes 4 s, and generation 2 s longer."""
    pool = hf.ResourcePool([2], use_gpu=False, name="devices")
    places = hf.Deployment(
        engine=hf.place(Engine, pool=pool.split([1, 1])[1]),
        judge=hf.place(Judge, pool=hf.ResourcePool([1], use_gpu=False, name="judge")),
        actor=hf.place(Actor, pool=pool),
    )
    program = flow.given(lag=2, late="wait").compile(places, dims={B: 4})
    takes = {"engine.generate": DrawnSeconds(6.0), "actor.update": DrawnSeconds(2.0)}
    simulated = simulate_plan(program, takes, 20)
    assert (simulated.results[15] - simulated.results[5]) / 10 == pytest.approx(8.0)
    assert simulated.idle["actor"] == pytest.approx(0.5, abs=0.05)


def test_a_rank_waits_for_the_chunks_with_its_rows_alone() -> None:
    """The judge's rank 1 begins when the engine's rank 1 has ended, at 2 s, and not at 4 s."""

    class ByRank:
        def __init__(self, *seconds: float) -> None:
            self.seconds = seconds

        def of(self, *call: object) -> float:
            return self.seconds[int(str(call[3]))]

    pools = {name: hf.ResourcePool([2], use_gpu=False, name=name) for name in ("engine", "judge", "actor")}
    places = {name: hf.place(role, pool=pools[name]) for name, role in (("engine", Engine), ("judge", Judge))}
    program = flow.given(lag=1, late="wait").compile(
        hf.Deployment(**places, actor=hf.place(Actor, pool=pools["actor"])), dims={B: 4}
    )
    takes: dict[str, CallSeconds] = {
        "engine.generate": ByRank(4.0, 2.0),
        "judge.score": ByRank(1.0, 5.0),
        "actor.update": DrawnSeconds(3.0),
    }
    assert simulate_plan(with_lag(program, 0), takes, 2).results == (10.0, 20.0)


def test_durations_of_a_users_own_occupy_the_device() -> None:
    class Constant:
        def of(self, *call: object) -> float:
            return 6.0

    takes: dict[str, CallSeconds] = {"engine.generate": Constant(), "actor.update": DrawnSeconds(2.0)}
    results = simulate_plan(plan(2, on_one_device), takes, 20).results
    assert (results[15] - results[5]) / 10 == pytest.approx(8.0)


@pytest.mark.parametrize("name", ["utilization", "interference", "engine_utilization"])
@pytest.mark.parametrize("share", [-0.1, 50.0, float("nan")])
def test_a_utilization_is_a_share(name: str, share: float) -> None:
    with pytest.raises(WiringError, match=f"^HF202: {name} is a number from 0 to 1, got {share}$"):
        Utilization(**{name: share})
    half: Any = {name: "half"}
    with pytest.raises(WiringError, match=f"^HF202: {name} is a number from 0 to 1, got 'half'$"):
        Utilization(**half)


def test_no_call_slows_others_down_while_it_has_no_kernels() -> None:
    with pytest.raises(WiringError, match=r"^HF202: interference is at most utilization, 0\.2, got 0\.3: a call slows"):
        Utilization(utilization=0.2, interference=0.3)
    assert Utilization(utilization=0.3, interference=0.3) != Utilization(utilization=0.3, interference=0.2)


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
    draws = sorted(DrawnSeconds(2.0, tail=10.0).of(call) for call in range(4000))
    assert draws[2000] == pytest.approx(2.0, rel=0.1)
    assert draws[3960] == pytest.approx(20.0, rel=0.25)
