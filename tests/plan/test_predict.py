"""Predictions: exact ones on durations that are given, and what holds of every program."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import hfdsl as hf
from hfdsl.deploy.pools import devices
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.predict import Duration, Prediction, durations, predict
from hfdsl.plan.timeline import Interval, Timeline
from tests.nightly import examples
from tests.plan.oracle import B, Program, R, Role, Rows, programs
from tests.plan.switches import switches

many = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
FREE = {"copy": math.inf, "network": math.inf, "gpu": math.inf}


@hf.dataflow
def fork(rows: Rows, a: Role, b: Role, c: Role) -> tuple[Rows, Rows]:
    first = a.flat(rows)
    return b.flat(first), c.flat(first)


def planned(a: hf.ResourcePool, b: hf.ResourcePool, c: hf.ResourcePool, *, colocate: bool = True) -> CompiledPlan:
    places = {n: hf.place(Role, 2, pool=pool, colocate=colocate) for n, pool in (("a", a), ("b", b), ("c", c))}
    return fork.compile(hf.Deployment(**places), dims={B: 4, R: 2})


def pool(size: int = 1, *, use_gpu: bool = True) -> hf.ResourcePool:
    return hf.ResourcePool([size], use_gpu=use_gpu)


TAKES = {"a.flat": Duration(1.0), "b.flat": Duration(2.0), "c.flat": Duration(3.0)}


def free(plan: CompiledPlan, node_durations: dict[str, Duration]) -> Prediction:
    return predict(plan, node_durations, FREE, latency=0.0)


def test_pools_of_their_own_overlap() -> None:
    prediction = free(planned(pool(), pool(), pool()), TAKES)
    assert prediction.timeline.nodes == {"a.flat": (0.0, 1.0), "b.flat": (1.0, 3.0), "c.flat": (1.0, 4.0)}
    assert (prediction.timeline.seconds, prediction.critical) == (4.0, ("a.flat", "c.flat"))
    assert prediction.timeline.overlaps == {("b.flat", "c.flat")}


@pytest.mark.parametrize("colocate", [True, False])
def test_a_shared_pool_keeps_program_order(colocate: bool) -> None:
    shared = pool()
    prediction = free(planned(shared, shared, shared, colocate=colocate), TAKES)
    assert prediction.timeline.nodes == {"a.flat": (0.0, 1.0), "b.flat": (1.0, 3.0), "c.flat": (3.0, 6.0)}
    assert (prediction.critical, prediction.timeline.overlaps) == (("a.flat", "b.flat", "c.flat"), frozenset())


def test_without_overlap_one_step_follows_the_other() -> None:
    plan = planned(pool(), pool(), pool())
    prediction = free(replace(plan, optimize=hf.Optimize(overlap=False)), TAKES)
    assert prediction.timeline.seconds == 6.0


def test_bytes_take_time_and_a_call_some_more() -> None:
    # 4 rows of two i64 and two i32 are 96 bytes, of the caller and of a.flat; b and c each give as much to the caller
    plan = planned(*(pool(use_gpu=False) for _ in range(3)))
    timeline = predict(plan, TAKES, {"copy": 96.0, "network": 48.0}, latency=0.5).timeline
    # A copy is 1 s, the way to another node 2 s: the driver has given at 1, a starts at 3.5 and has given at 5.5.
    assert timeline.nodes == {"a.flat": (3.5, 4.5), "b.flat": (8.0, 10.0), "c.flat": (8.0, 11.0)}
    assert timeline.seconds == 11.0 + 1.0 + 2.0 + 0.5
    assert {(t.bytes, t.arrived - t.sent) for t in timeline.transfers} == {(96, 2.5)}


def test_transfers_between_gpus_take_no_time_of_the_sender() -> None:
    # Pools have GPUs by default. The 96 bytes of a.flat leave when it ends and are on other GPUs 3 s later.
    plan = planned(pool(), pool(), pool())
    timeline = predict(plan, TAKES, {"copy": 96.0, "network": 48.0, "gpu": 32.0}, latency=0.5).timeline
    assert timeline.nodes == {"a.flat": (3.5, 4.5), "b.flat": (8.0, 10.0), "c.flat": (8.0, 11.0)}
    assert [t.arrived - t.sent for t in timeline.transfers if t.source[0] == "a" and t.target[0] != DRIVER] == [
        3.5,
        3.5,
    ]


def test_time_grows_with_the_rows_of_a_rank() -> None:
    per_row = {name: Duration(1.0, rows=4) for name in TAKES}
    timeline = free(planned(pool(2), pool(4), pool()), per_row).timeline
    assert {name: stop - start for name, (start, stop) in timeline.nodes.items()} == {
        "a.flat": 0.5,
        "b.flat": 0.25,
        "c.flat": 1.0,
    }


def test_a_node_takes_what_its_last_rank_needs() -> None:
    def step(*calls: tuple[float, float]) -> Timeline:
        intervals = tuple(Interval(("a", i), "call", "a.f", *times, 2) for i, times in enumerate(calls))
        return Timeline("flow", 0, 0.0, 9.0, intervals)

    waited = step((0.0, 5.0), (3.0, 5.0))  # rank 0 has waited for rank 1 in a collective
    assert durations([waited]) == {"a.f": Duration(2.0, 2)}
    assert durations([waited, step((0.0, 7.0), (0.0, 1.0)), step((0.0, 9.0), (0.0, 9.0))]) == {"a.f": Duration(7.0, 2)}


def test_a_step_without_a_time_is_reported() -> None:
    with pytest.raises(KeyError, match=r"b\.flat"):
        free(planned(pool(), pool(), pool()), {"a.flat": Duration(1.0)})


@many
@given(programs(), switches)
def test_every_call_is_made_once_in_order(program: Program, optimize: hf.Optimize) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2}, optimize=optimize)
    prediction = free(plan, {step.label: Duration(1.0) for step in plan.steps})
    calls = prediction.timeline.calls
    assert sorted((c.name, c.process[1]) for c in calls) == sorted((s.label, r) for s in plan.steps for r in s.ranks)
    assert prediction.timeline.seconds == len(prediction.critical)
    slots = {group.name: devices(group.pool) for group in plan.groups}
    number = {step.label: i for i, step in enumerate(plan.steps)}
    by_device: dict[Any, list[Interval]] = {}
    for call in calls:
        group, rank = call.process
        by_device.setdefault(slots[group][rank] if group != DRIVER else DRIVER, []).append(call)
    for slot, calls_there in by_device.items():  # the driver's own functions wait until a reader needs them
        in_order = sorted(calls_there, key=lambda call: call.start if slot == DRIVER else number[call.name])
        assert all(call.stop <= later.start for call, later in pairwise(in_order))
    if not optimize.overlap and not optimize.fusion and all(step.group != DRIVER for step in plan.steps):
        assert not prediction.timeline.overlaps
    ends = [stop for _, stop in prediction.timeline.nodes.values()]
    assert max(ends, default=0.0) == prediction.timeline.seconds
