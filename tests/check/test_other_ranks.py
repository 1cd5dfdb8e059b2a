# mypy: disable-error-code="empty-body"
"""Rows that do not split evenly: the numbers of data-parallel ranks that are offered, each of them tried here too."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.nightly import examples


class B(hf.Dim): ...


class C(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Others(hf.Batch):
    y: hf.f32[C]


class Role(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def score(self, rows: Rows) -> Rows: ...

    @register(Dispatch.THREE_D_PROTO)
    def read(self, others: Others) -> None: ...


class Grouped(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(4))
    def score(self, rows: Rows) -> Rows: ...


class Limited(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.requires("B <= 6")
    def score(self, rows: Rows) -> Rows: ...


class Micro(hf.Worker):
    def __init__(self, micro_batch: int) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % micro_batch == 0")
    def score(self, rows: Rows) -> Rows: ...


@hf.requires("dp % 2 == 0")
class Even(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows: ...


@hf.dataflow
def one(rows: Rows, a: Role) -> Rows:
    return a.score(rows)


@hf.dataflow
def grouped(rows: Rows, a: Grouped) -> Rows:
    return a.score(rows)


@hf.dataflow
def limited(rows: Rows, a: Limited) -> Rows:
    return a.score(rows)


@hf.dataflow
def micro(rows: Rows, a: Micro) -> Rows:
    return a.score(rows)


@hf.dataflow
def even(rows: Rows, a: Even) -> Rows:
    return a.score(rows)


@hf.dataflow
def two(rows: Rows, a: Role, b: Role) -> tuple[Rows, Rows]:
    return a.score(rows), b.score(rows)


@hf.dataflow
def unlike(rows: Rows, others: Others, a: Role) -> Rows:
    a.read(others)
    return a.score(rows)


@hf.dataflow
def long(rows: Rows, a: Role) -> Rows:
    for _ in range(200):
        rows = a.score(rows)
    return rows


SIZES = "set B to 20 or 25: every split and requirement then holds"


def offered(
    flow: Any, rows: int | tuple[int, ...], cluster: hf.Cluster | None = None, **places: Any
) -> tuple[str, ...]:
    """The help lines of the first finding."""
    finding: hf.Finding = flow.check(hf.Deployment(**places), {B: rows}, cluster).findings[0]
    return finding.help


def pool(*processes: int, gpu: bool = True, name: str = "x") -> hf.ResourcePool:
    return hf.ResourcePool(processes, gpu, name=name)


def nodes(gpus: int, count: int = 1) -> hf.Cluster:
    return hf.Cluster(hf.Nodes(count, gpus=gpus, gpu_memory_gib=80, cpus=64))


def test_the_nearest_numbers_of_ranks_follow_the_sizes() -> None:
    fewer, both = (
        "give pool 'x' 4 slots: processes [4]",
        "give pool 'x' 4 slots: processes [4] or 6 slots: processes [6]",
    )
    assert offered(one, 24, a=hf.place(Role, pool=pool(5))) == (SIZES, fewer), "more GPUs may not exist"
    assert offered(one, 24, nodes(8), a=hf.place(Role, pool=pool(5))) == (SIZES, both)
    assert offered(one, 24, nodes(5), a=hf.place(Role, pool=pool(5))) == (SIZES, fewer), "no room"
    assert offered(one, 24, a=hf.place(Role, pool=pool(5, gpu=False))) == (SIZES, both)
    assert offered(one, 24, a=hf.place(Role, pool=pool(3, 2, gpu=False)))[1:] == (
        "give pool 'x' 4 slots: processes [2, 2]",
    )


def test_a_number_far_from_the_present_one_is_no_repair() -> None:
    assert offered(one, 26, nodes(64), a=hf.place(Role, pool=pool(5)))[1:] == (), "26 = 2 * 13"
    assert offered(one, 5, a=hf.place(Role, pool=pool(2)))[1:] == (), "one rank is not data parallel"
    assert offered(one, 4, a=hf.place(Role, pool=pool(8)))[1:] == ("give pool 'x' 4 slots: processes [4]",)


def test_a_mesh_that_is_written_changes_too() -> None:
    words = "set dp to 4 and give pool 'x' 4 slots: processes [4]"
    assert offered(one, 24, a=hf.place(Role, pool=pool(5), mesh=hf.Mesh(dp=5))) == (SIZES, words)
    place = hf.place(Role, pool=pool(8, 2), mesh=hf.Mesh(dp=5, tp=2))
    assert offered(one, 24, a=place)[1:] == ("set dp to 4 and give pool 'x' 8 slots: processes [8]",)
    place = hf.place(Role, pool=pool(4, 4), mesh=hf.Mesh(dp=4, tp=2))
    words = "set dp to 3 and give pool 'x' 6 slots: processes [4, 2]"
    assert offered(one, 30, a=place)[1:] == (words,), "[3, 3] would cut tp"


def test_groups_stay_whole() -> None:
    assert offered(grouped, 24, a=hf.place(Grouped, pool=pool(4, 4)))[-1] == "give pool 'x' 6 slots: processes [3, 3]"
    assert offered(grouped, 24, a=hf.place(Grouped, pool=pool(5)))[-1] == "give pool 'x' 3 slots: processes [3]", (
        "not 4"
    )


def test_what_no_size_repairs_another_number_of_ranks_may() -> None:
    report = limited.check(hf.Deployment(a=hf.place(Limited, pool=pool(8))), {B: 6})
    assert [(finding.code, finding.help) for finding in report] == [
        ("HF318", ("give pool 'x' 6 slots: processes [6]",)),
    ]


def test_what_other_demands_refute_is_not_offered() -> None:
    assert not any("slots" in line for line in offered(micro, 24, a=hf.place(Micro, 5, pool=pool(5))))
    assert offered(even, 21, a=hf.place(Even, pool=pool(8)))[1:] == (), "7 is odd"
    assert offered(even, 12, a=hf.place(Even, pool=pool(8)))[1:] == ("give pool 'x' 6 slots: processes [6]",)


def test_all_roles_of_a_pool_move_together() -> None:
    shared = pool(8)
    places: dict[str, Any] = {"a": hf.place(Role, pool=shared), "b": hf.place(Role, pool=shared)}
    assert offered(two, 12, **places)[1:] == ("give pool 'x' 6 slots: processes [6]",)
    places["b"] = hf.place(Role, pool=shared, mesh=hf.Mesh(dp=4, tp=2))
    assert offered(two, 12, **places)[1:] == ("set dp of 'b' to 3 and give pool 'x' 6 slots: processes [6]",)
    places["b"] = hf.place(Role, pool=shared, mesh=hf.Mesh(dp=2, tp=4))
    assert offered(two, 12, **places)[1:] == ("split the pool: pool.split([6, 2])",), "6 is no multiple of tp"
    places["a"] = hf.place(Role, pool=shared, mesh=hf.Mesh(dp=8))
    assert offered(two, 12, **places)[1:] == ("set dp to 6 and split the pool: pool.split([6, 2])",)


def test_a_pool_that_shares_devices_is_split() -> None:
    left, right = pool(8).split([5, 3])
    split = "split the pool: pool.split([4, 1])"
    assert offered(two, 24, nodes(16), a=hf.place(Role, pool=left), b=hf.place(Role, pool=right))[1:] == (split,)
    merged = pool(3).merge(pool(2, name="y"))
    assert offered(one, 24, a=hf.place(Role, pool=merged)) == (SIZES, split)
    apart: dict[str, Any] = {"a": hf.place(Role, pool=pool(5)), "b": hf.place(Role, pool=pool(5, name="y"))}
    assert offered(two, 24, **apart) == (SIZES,), "one pool alone does not repair it"


def test_a_pool_without_a_name_is_that_of_its_roles() -> None:
    assert offered(one, 24, a=hf.place(Role, pool=hf.ResourcePool([5])))[1:] == (
        "give the pool of 'a' 4 slots: processes [4]",
    )


def test_of_several_sizes_each_splits_and_their_repairs_come_first() -> None:
    sizes = ("set B = 24 to 16 or 32", "set B = 36 to 32 or 48")
    helped = offered(one, (24, 36), a=hf.place(Role, pool=pool(8, 8)))
    assert tuple(line.partition(":")[0] for line in helped) == (*sizes, "give pool 'x' 12 slots")
    assert len(offered(one, (24, 25), a=hf.place(Role, pool=pool(8, 8)))) == 2, "nothing divides both"


def test_all_rows_of_the_roles_split_evenly() -> None:
    deployment = hf.Deployment(a=hf.place(Role, pool=pool(5)))
    [finding] = unlike.check(deployment, {B: 24, C: 25}).findings
    assert finding.help == (SIZES,), "neither 4 nor 6 divides 25"
    [finding] = unlike.check(deployment, {B: 24, C: 20}).findings
    assert finding.help == (SIZES, "give pool 'x' 4 slots: processes [4]")


def test_a_large_program_keeps_its_budget_for_sizes() -> None:
    assert offered(long, 24, a=hf.place(Role, pool=pool(5))) == (SIZES,)


GIVEN = re.compile(r"(\d+) slots: processes (\[[\d, ]+\])")


@settings(max_examples=examples(200))
@given(st.integers(1, 120), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 2))
def test_every_offer_works_and_none_is_missed(rows: int, processes: list[int], tp: int) -> None:
    slots = sum(processes) * tp
    place = hf.place(Role, pool=pool(*(n * tp for n in processes)), mesh=hf.Mesh(dp=sum(processes), tp=tp))
    report = one.check(hf.Deployment(a=place), {B: rows}, nodes(8 * tp, 3))
    lines = [line for finding in report for line in finding.help]
    given_slots = [int(size) for line in lines for size, _ in GIVEN.findall(line)]
    dp = slots // tp
    near = [ranks for ranks in range(max(2, -(-dp // 2)), 2 * dp + 1) if not rows % ranks]
    smaller, larger = [n for n in near if n < dp], [n for n in near if n > dp]
    expected = [] if dp == 1 or report.ok else [*smaller[-1:], *larger[:1]]
    assert given_slots == [ranks * tp for ranks in expected]
    for line in lines:
        for size, written in GIVEN.findall(line):
            shaped = pool(*map(int, written[1:-1].split(",")))
            moved = hf.place(Role, pool=shaped, mesh=hf.Mesh(dp=int(size) // tp, tp=tp))
            assert one.check(hf.Deployment(a=moved), {B: rows}, nodes(8 * tp, 3)).ok
