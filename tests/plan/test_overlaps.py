"""What a plan says to run side by side, against predictions: exactly that may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from hypothesis import HealthCheck, given, settings

import hfdsl as hf
from hfdsl import Dispatch, i64, register
from hfdsl.plan.overlaps import overlaps
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.predict import Duration, predict
from tests.nightly import examples
from tests.plan.oracle import B, Program, R, programs

FREE = {"copy": math.inf, "network": math.inf, "gpu": math.inf}


def to_all(group: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple([arg] * group.world_size for arg in args), {}


class Ids(hf.Batch):
    ids: i64[B]


class Judge(hf.Worker):
    @register({"dispatch_fn": to_all, "collect_fn": lambda group, outputs: outputs[0]})
    def by_pair(self, ids: Ids) -> Ids:
        return ids

    @register(Dispatch.DP_PROTO)
    def plainly(self, ids: Ids) -> Ids:
        return ids


@hf.dataflow
def two_pairs(ids: Ids, a: Judge, b: Judge) -> tuple[Ids, Ids]:
    return a.by_pair(ids), b.by_pair(ids)


@hf.dataflow
def pair_last(ids: Ids, a: Judge, b: Judge) -> tuple[Ids, Ids]:
    return a.plainly(ids), b.by_pair(ids)


@hf.dataflow
def pair_between(ids: Ids, a: Judge, b: Judge, c: Judge) -> tuple[Ids, Ids, Ids]:
    return a.plainly(ids), b.by_pair(ids), c.plainly(ids)


@hf.dataflow
def plain(ids: Ids, a: Judge, b: Judge) -> tuple[Ids, Ids]:
    return a.plainly(ids), b.plainly(ids)


@hf.dataflow
def two_chains(ids: Ids, a: Judge, b: Judge) -> tuple[Ids, Ids]:
    return a.plainly(a.plainly(ids)), b.plainly(b.plainly(ids))


def planned(flow: Any, roles: str, shared: hf.ResourcePool | None = None) -> Any:
    pools = {name: shared or hf.ResourcePool([1], use_gpu=False) for name in roles}
    places = {name: hf.place(Judge, pool=pool, colocate=False) for name, pool in pools.items()}
    return flow.compile(hf.Deployment(**places), dims={B: 4})


def pairs(groups: Sequence[Sequence[str]]) -> set[tuple[str, str]]:
    return {(min(pair), max(pair)) for group in groups for pair in combinations(group, 2)}


def claimed(plan: Any) -> set[tuple[str, str]]:
    return pairs([[step.label for step in together] for together in overlaps(plan)])


def predicted(plan: Any) -> set[tuple[str, str]]:
    """The pairs that overlap where every role takes equally long."""
    durations = {step.label: Duration(0.0 if step.group == DRIVER else 1.0) for step in plan.steps}
    return set(predict(plan, durations, FREE, latency=0.0).timeline.overlaps)


def test_nothing_runs_beside_the_first_of_two_pairs_of_functions() -> None:
    """The driver waits for the first call to collect its results: two bodies of 3 s took 6 s."""
    plan = planned(two_pairs, "ab")
    assert claimed(plan) == predicted(plan) == set()
    assert [step.stage for step in plan.steps] == [1, 2]
    assert "overlap  none\n         later steps begin once a.by_pair ends: the driver runs its collect fun" in str(plan)


def test_what_comes_before_a_pair_of_functions_runs_beside_it() -> None:
    plan = planned(pair_last, "ab")
    assert claimed(plan) == predicted(plan) == {("a.plainly", "b.by_pair")}
    assert "later steps" not in str(plan), "there are none"
    plan = planned(pair_between, "abc")
    assert claimed(plan) == predicted(plan) == {("a.plainly", "b.by_pair")}


def test_processes_that_share_devices_take_turns() -> None:
    assert claimed(planned(plain, "ab")) == {("a.plainly", "b.plainly")}
    assert claimed(planned(plain, "ab", hf.ResourcePool([1]))) == set()


def test_a_step_is_listed_with_those_that_begin_at_the_same_time() -> None:
    together = [[step.label for step in steps] for steps in overlaps(planned(two_chains, "ab"))]
    assert together == [["a.plainly#1", "b.plainly#1"], ["a.plainly#2", "b.plainly#2"]]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_what_is_said_to_overlap_does_where_each_takes_long(program: Program) -> None:
    dims = {B: program.rows, R: 2}
    plan = program.dataflow().compile(program.deployment(), dims=dims, optimize=hf.Optimize(fusion=False))
    for together in overlaps(plan):
        long = {step.label for step in together}
        durations = {step.label: Duration(1000.0 if step.label in long else 1.0) for step in plan.steps}
        timeline = predict(plan, durations, FREE, latency=0.0).timeline
        assert pairs([sorted(long)]) <= timeline.overlaps
