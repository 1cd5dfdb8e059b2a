"""What a plan says to run side by side, against predictions: exactly that may."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, groupby
from types import MappingProxyType
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, bool_, i64, register
from hfdsl.plan.overlaps import overlaps
from hfdsl.plan.plan import DRIVER, Step
from hfdsl.plan.predict import Duration, predict
from tests.nightly import examples
from tests.plan.oracle import B, Place, Program, R, programs

many = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
FREE = {"copy": math.inf, "network": math.inf, "gpu": math.inf}


def to_all(group: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple([arg] * group.world_size for arg in args), {}


class Ids(hf.Batch):
    ids: i64[B]


class Marked(hf.Batch):
    ids: i64[B]
    keep: bool_[B]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def mark(self, ids: Ids) -> Marked:
        return Marked(ids=ids.ids, keep=bool_(ids.ids.tensor > 0))

    @register(Dispatch.DP_PROTO)
    def kept(self, marked: Marked) -> Marked:
        return marked

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


@hf.dataflow
def long_beside_two(ids: Ids, a: Judge, b: Judge) -> tuple[Ids, Ids]:
    first, long = a.plainly(ids), b.plainly(ids)
    return a.plainly(first), long


@hf.dataflow
def filter_before_pair(ids: Ids, a: Judge, b: Judge, c: Judge) -> tuple[Marked, Ids]:
    marked = a.mark(ids)
    return b.kept(hf.filter(marked, marked.keep)), c.by_pair(ids)


@hf.function
def same(ids: Ids) -> Ids:
    return ids


@hf.dataflow
def filter_before_function(ids: Ids, a: Judge, b: Judge) -> tuple[Ids, Ids]:
    return same(hf.filter(ids, a.mark(ids).keep)), b.plainly(same(ids))


def planned(flow: Any, roles: str, shared: hf.ResourcePool | None = None) -> Any:
    pools = {name: shared or hf.ResourcePool([1], use_gpu=False) for name in roles}
    places = {name: hf.place(Judge, pool=pool, colocate=False) for name, pool in pools.items()}
    return flow.compile(hf.Deployment(**places), dims={B: 4})


def pairs(groups: Sequence[Sequence[str]]) -> set[tuple[str, str]]:
    return {(min(pair), max(pair)) for group in groups for pair in combinations(group, 2)}


def claimed(plan: Any) -> set[tuple[str, str]]:
    return pairs([[step.label for step in together] for together in overlaps(plan)])


def predicted(plan: Any, seconds: Mapping[str, float] = MappingProxyType({})) -> set[tuple[str, str]]:
    """The pairs that overlap where each step of a process takes so long, by default 1 s."""
    durations = {step.label: Duration(seconds.get(step.label, 1.0)) for step in remote(plan)}
    drivers = {step.label: Duration(0.0) for step in plan.steps if step.group == DRIVER}
    together = predict(plan, durations | drivers, FREE, latency=0.0).timeline.overlaps
    return {pair for pair in together if drivers.keys().isdisjoint(pair)}


def remote(plan: Any) -> list[Step]:
    return [step for step in plan.steps if step.group != DRIVER]


def test_nothing_runs_beside_the_first_of_two_pairs_of_functions() -> None:
    """The driver waits for the first call to collect its results: two bodies of 3 s took 6 s."""
    plan = planned(two_pairs, "ab")
    assert claimed(plan) == predicted(plan) == set()
    assert [step.level for step in plan.steps] == [1, 2]
    assert "overlap  none\n         later steps begin once a.by_pair ends: the driver runs its collect fun" in str(plan)


def test_what_comes_before_a_pair_of_functions_runs_beside_it() -> None:
    plan = planned(pair_last, "ab")
    assert claimed(plan) == predicted(plan) == {("a.plainly", "b.by_pair")}
    assert "later steps" not in str(plan), "there are none"
    plan = planned(pair_between, "abc")
    assert predicted(plan) == {("a.plainly", "b.by_pair")}
    beside_a = {("a.plainly", "b.by_pair"), ("a.plainly", "c.plainly")}
    assert claimed(plan) == predicted(plan, {"a.plainly": 2.0}) == beside_a


def test_what_waits_for_a_filter_runs_after_a_later_pair_of_functions() -> None:
    """The worked example: the driver waits for ``c``, which it can submit, before it waits for the filter."""
    plan = planned(filter_before_pair, "abc")
    assert claimed(plan) == predicted(plan) == {("a.mark", "c.by_pair")}
    assert {step.label: step.level for step in plan.steps} == {"a.mark": 1, "b.kept": 2, "c.by_pair": 1}
    assert "later steps begin once c.by_pair ends" in str(plan), "b.kept does, although the program has it before"


def test_a_function_that_waits_for_a_filter_holds_up_no_other_function() -> None:
    plan = planned(filter_before_function, "ab")
    assert claimed(plan) == predicted(plan) == {("a.mark", "b.plainly")}


def test_processes_that_share_devices_take_turns() -> None:
    assert claimed(planned(plain, "ab")) == {("a.plainly", "b.plainly")}
    assert claimed(planned(plain, "ab", hf.ResourcePool([1]))) == set()


def test_a_step_is_listed_with_those_that_begin_at_the_same_time() -> None:
    together = [[step.label for step in steps] for steps in overlaps(planned(two_chains, "ab"))]
    assert together == [["a.plainly#1", "b.plainly#1"], ["a.plainly#2", "b.plainly#2"]]


def test_every_step_that_overlaps_with_another_is_listed() -> None:
    together = [[step.label for step in steps] for steps in overlaps(planned(long_beside_two, "ab"))]
    assert together == [["a.plainly#1", "b.plainly"], ["b.plainly", "a.plainly#2"]]


def compiled(program: Program) -> Any:
    optimize = hf.Optimize(fusion=False)
    return program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2}, optimize=optimize)


PAIR_BEFORE_WEIGHTS = Program(  # the driver waits for ``custom`` before it reads the weights that balance ``even``
    places=(
        Place(hf.Mesh(dp=2, tp=2), hf.ResourcePool([4], name="pool0"), colocate=False),
        Place(hf.Mesh(dp=3), hf.ResourcePool([3], name="pool1"), colocate=False),
        Place(hf.Mesh(dp=2), hf.ResourcePool([2], name="pool2"), colocate=False),
    ),
    rows=6,
    everything=False,
    steps=[
        ("micro", 0, 0),
        ("even", 2, 1),
        ("micro", 0, 1),
        ("micro", 0, 3),
        ("micro", 0, 4),
        ("micro", 0, 5),
        ("custom", 1, 6),
    ],
)

LONG_BESIDE_TWO = Program(
    places=(
        Place(hf.Mesh(), hf.ResourcePool([1], name="pool0"), colocate=False),
        Place(hf.Mesh(), hf.ResourcePool([1], name="pool1"), colocate=False),
    ),
    rows=1,
    everything=False,
    steps=[("flat", 0, 0), ("flat", 1, 0), ("flat", 0, 1)],
)


@many
@given(programs())
@example(PAIR_BEFORE_WEIGHTS)
def test_what_is_said_to_overlap_does_where_each_takes_long(program: Program) -> None:
    """The steps of a list, and those of a level."""
    plan = compiled(program)
    in_levels = sorted(remote(plan), key=lambda step: step.level)
    levels = [list(steps) for _, steps in groupby(in_levels, key=lambda step: step.level)]
    for together in [*overlaps(plan), *levels]:
        long = sorted(step.label for step in together)
        assert pairs([long]) <= predicted(plan, dict.fromkeys(long, 1000.0))


@many
@given(programs(), st.lists(st.sampled_from([0.1, 1.0, 5.0, 30.0]), min_size=5, max_size=12))
@example(LONG_BESIDE_TWO, [1.0, 5.0, 1.0])
def test_what_overlaps_is_listed_where_ranks_work_together(program: Program, drawn: list[float]) -> None:
    plan = compiled(program)
    ranks = {group.name: group.pool.world_size for group in plan.groups}
    assume(all(len(step.ranks) == ranks[step.group] for step in remote(plan)))
    seconds = {step.label: drawn[i % len(drawn)] for i, step in enumerate(remote(plan))}
    listed = {step.label for together in overlaps(plan) for step in together}
    assert {label for pair in predicted(plan, seconds) for label in pair} <= listed
