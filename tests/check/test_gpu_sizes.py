"""Nodes with GPUs of different sizes: each way to place a pool is gone through, and what moves suits the smallest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.gpu_sizes import gpu_sizes
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.offloading import Part
from tests.nightly import examples


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("w")
    def look(self, rows: Rows) -> Rows:
        return rows

    def offload(self, part: Part) -> None: ...

    def onload(self, part: Part) -> None: ...


@hf.dataflow
def flow(rows: Rows, a: Role, b: Role) -> Rows:
    return b.look(a.look(rows))


def nodes(gpus: int, size: float, count: int = 1) -> hf.Nodes:
    return hf.Nodes(count, gpus=gpus, gpu_memory_gib=size, cpus=64)


kinds = st.builds(nodes, st.sampled_from([2, 4, 8]), st.sampled_from([24, 40, 80, 141.5]), st.integers(1, 2))
clusters = st.lists(kinds, min_size=1, max_size=3).map(lambda node_kinds: hf.Cluster(*node_kinds))


def placements(widths: Sequence[int], cluster: hf.Cluster) -> Iterator[tuple[hf.Nodes, ...]]:
    """Each way to lay nodes of a pool on those of a cluster, one by one, with the kind on which each of them is."""
    single = [kind for kind in cluster.kinds for _ in range(kind.count)]
    for where in itertools.product(range(len(single)), repeat=len(widths)):
        amounts = [sum(w for w, at in zip(widths, where, strict=True) if at == i) for i in range(len(single))]
        if all(have.gpus >= need for have, need in zip(single, amounts, strict=True)):
            yield tuple(single[at] for at in where)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4), clusters, st.data())
def test_bounds_are_those_of_all_ways_to_place_the_slots(
    processes: list[int], cluster: hf.Cluster, data: st.DataObject
) -> None:
    slots = range(*sorted(data.draw(st.sets(st.integers(0, sum(processes)), min_size=2, max_size=2))))
    node_of = [node for node, size in enumerate(processes) for _ in range(size)]
    touched = sorted(set(node_of[slots.start : slots.stop]))
    ways = list(placements([processes[node] for node in touched], cluster))
    sizes = [{Fraction(kind.gpu_memory_gib or 0) for kind in way} for way in ways]
    smallest, largest = gpu_sizes(cluster, hf.ResourcePool(processes), slots)
    if ways:
        assert (smallest, largest) == (min(map(min, sizes)), max(map(min, sizes)))
    else:
        widest = max(processes[node] for node in touched)
        alone = [Fraction(kind.gpu_memory_gib or 0) for kind in cluster.kinds if kind.gpus >= widest]
        assert (smallest, largest) == (min(alone, default=None), max(alone, default=None))


@pytest.mark.parametrize(
    ("kinds", "processes", "slots", "expected"),
    [
        ([(8, 80, 1), (8, 40, 1)], [8], range(8), (40, 80)),
        ([(8, 80, 1), (8, 40, 1)], [8, 8], range(16), (40, 40)),
        ([(8, 80, 1), (8, 40, 1), (8, 80, 1)], [8, 8], range(16), (40, 80)),  # one kind, described twice
        ([(8, 80, 1), (4, 40, 1)], [8, 4], range(12), (40, 40)),
        ([(8, 80, 1), (4, 40, 1)], [8, 4], range(8, 12), (40, 80)),  # its second node may lie on either
        ([(8, 80, 1), (2, 24, 1)], [4], range(4), (80, 80)),
        ([(4, 80, 1), (2, 40, 1)], [4, 4, 2], range(10), (80, 80)),  # no room for all: what takes the widest
        ([(4, 80, 1)], [8], range(8), (None, None)),
    ],
)
def test_the_smallest_gpu_that_one_may_get_and_the_largest_that_all_may_get(
    kinds: list[tuple[int, float, int]], processes: list[int], slots: range, expected: tuple[int | None, ...]
) -> None:
    sizes = gpu_sizes(hf.Cluster(*(nodes(*kind) for kind in kinds)), hf.ResourcePool(processes), slots)
    assert tuple(size and int(size) for size in sizes) == expected


amounts = st.sampled_from(["10GiB", "20GiB", "30GiB", "45GiB", "55%", "90GiB"])


def compiled(pool: hf.ResourcePool, cluster: hf.Cluster, memory: Sequence[str]) -> CompiledPlan | None:
    """The plan; None where no GPUs can be enough."""
    places = {name: hf.place(Role, pool=pool, gpu_memory=amounts) for name, amounts in zip("ab", memory, strict=True)}
    report = flow.check(hf.Deployment(**places), {B: pool.world_size}, cluster)
    assert set(report.codes) <= {"HF504"}
    return flow.compile(hf.Deployment(**places), {B: pool.world_size}, cluster) if report.ok else None


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3), clusters, st.lists(amounts, min_size=2, max_size=2)
)
def test_roles_fit_the_gpus_of_every_placement_where_moving_can_do_it_and_are_refused_where_none_is_large_enough(
    processes: list[int], cluster: hf.Cluster, memory: list[str]
) -> None:
    ways = [{Fraction(kind.gpu_memory_gib or 0) for kind in way} for way in placements(processes, cluster)]
    if not ways:
        return
    pool = hf.ResourcePool(processes)
    plan = compiled(pool, cluster, memory)
    fits = [all(_gib(text, size) <= size for text in memory for size in way) for way in ways]
    assert (plan is not None) == any(fits)
    if plan is not None:
        together = [sum(_gib(text, size) for text in memory) <= size for way in ways for size in way]
        assert bool(plan.offloads) == (not all(together))


def _gib(text: str, size: Fraction) -> Fraction:
    return Fraction(text.removesuffix("%")) * size / 100 if text.endswith("%") else Fraction(text.removesuffix("GiB"))


def test_nodes_that_are_named_twice_are_there_twice() -> None:
    small, large, memory = nodes(2, 24), nodes(2, 40), ["10GiB", "30GiB"]
    assert compiled(hf.ResourcePool([2, 2, 2]), hf.Cluster(small, small, large), memory) is None, "some get 24 GiB"
    assert compiled(hf.ResourcePool([2]), hf.Cluster(small, small, large), memory) is not None


def test_a_pool_that_may_lie_on_small_nodes_is_planned_for_them() -> None:
    large, small = nodes(8, 80), nodes(8, 40, count=9)
    pool, memory = hf.ResourcePool([8]), ["30GiB", "30GiB"]
    both, alone = compiled(pool, hf.Cluster(large, small), memory), compiled(pool, hf.Cluster(large), memory)
    assert both is not None
    assert alone is not None
    assert {idle.role for idle in both.offloads} == {"a", "b"}
    assert alone.offloads == ()
    assert compiled(pool, hf.Cluster(large, small), ["45GiB", "30GiB"]) is not None  # the large node takes it
    assert compiled(hf.ResourcePool([8, 8]), hf.Cluster(large, small), ["45GiB", "30GiB"]) is None
