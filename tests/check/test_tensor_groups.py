# mypy: disable-error-code="empty-body"
"""Tensor-parallel groups: where they cross nodes, and the narrower ones that are offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, ResourcePool, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Role(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def score(self, rows: Rows) -> Rows: ...


@hf.dataflow
def program(rows: Rows, role: Role) -> Rows:
    return role.score(rows)


def check(pool: ResourcePool, mesh: hf.Mesh, cluster: hf.Cluster | None = None, rows: int = 24) -> hf.Report:
    return program.check(hf.Deployment(role=hf.place(Role, pool=pool, mesh=mesh)), {B: rows}, cluster)


def test_what_ends_within_a_group_is_a_node() -> None:
    assert check(ResourcePool([2, 6]), hf.Mesh(dp=2, tp=4)).codes == ("HF503",)
    assert check(ResourcePool([4, 4]), hf.Mesh(dp=2, tp=4)).codes == ()
    assert check(ResourcePool([3, 5]), hf.Mesh(dp=8)).codes == ()
    left, right = ResourcePool([4, 4]).split([6, 2])
    assert check(left.merge(right), hf.Mesh(dp=2, tp=4)).codes == ()  # what ends after six ranks is a part of the node
    assert check(right.merge(left), hf.Mesh(dp=2, tp=4)).codes == ("HF503",)  # two ranks of one, then of the other


def test_groups_that_are_no_runs_of_ranks_are_a_layout_of_choice() -> None:
    assert check(ResourcePool([2, 6]), hf.Mesh(dp=2, tp=4, order=("pp", "tp", "dp"))).codes == ()


def test_nodes_that_are_linked_two_by_two_may_hold_a_group() -> None:
    nodes = hf.Nodes(2, gpus=4, gpu_memory_gib=186, cpus=144)
    assert check(ResourcePool([4, 4]), hf.Mesh(tp=8), hf.Cluster(nodes)).codes == ("HF503",)
    assert check(ResourcePool([4, 4]), hf.Mesh(tp=8), hf.Cluster(replace(nodes, domain=2))).codes == ()


@pytest.mark.parametrize(
    ("nodes", "mesh", "rows", "offered"),
    [
        ([3, 3], hf.Mesh(tp=6), 24, "hf.Mesh(dp=2, tp=3)"),
        ([2, 2, 2, 2], hf.Mesh(tp=8), 24, "hf.Mesh(dp=4, tp=2)"),  # four do not stay on a node either
        ([4, 4], hf.Mesh(tp=8), 24, "hf.Mesh(dp=2, tp=4)"),
        ([2, 2, 2], hf.Mesh(dp=2, tp=3), 24, None),  # a model that is not cut is not what was asked for
        ([4, 4], hf.Mesh(tp=8), 3, None),  # rows for an odd number of replicas
        ([2, 2, 2, 2], hf.Mesh(tp=8, gen_tp=4), 24, None),  # two do not hold a group of generation
        ([4, 4], hf.Mesh(tp=8, order=("pp", "tp", "dp")), 24, None),  # groups would be no runs
    ],
)
def test_the_widest_groups_that_stay_on_a_node_are_offered(
    nodes: list[int], mesh: hf.Mesh, rows: int, offered: str | None
) -> None:
    [finding] = check(ResourcePool(nodes), mesh, rows=rows).findings
    assert finding.code == "HF503"
    assert [line.partition("use ")[2].partition(":")[0] for line in finding.help] == ([offered] if offered else [])


def test_groups_that_upset_another_call_are_not_offered_where_its_rows_are_uneven_anyway() -> None:
    @hf.dataflow
    def both(rows: Rows, role: Role, other: Role) -> Rows:
        return other.score(role.score(rows))

    pool = ResourcePool([8, 8])
    places = hf.Deployment(role=hf.place(Role, pool=pool, mesh=hf.Mesh(tp=16)), other=hf.place(Role, pool=pool))
    for rows, help_lines in ((63, 0), (64, 1)):
        crossing = next(finding for finding in both.check(places, {B: rows}) if finding.code == "HF503")
        assert len(crossing.help) == help_lines


@pytest.mark.parametrize(
    ("pool", "tp"),
    [
        (hf.ResourcePool([4, 4]).split([1, 4, 3])[1], 2),
        (hf.ResourcePool([4, 4]).split([2, 6])[1].merge(hf.ResourcePool([4]).split([2, 2])[1]), 4),
    ],
)
def test_groups_of_a_pool_that_starts_within_a_group_cross_its_nodes(pool: hf.ResourcePool, tp: int) -> None:
    class Role(hf.Worker):
        @register(Dispatch.ONE_TO_ALL)
        def work(self, number: int) -> None: ...

    def program(role: Any) -> None:
        role.work(1)

    program.__annotations__["role"] = Role
    place = hf.place(Role, pool=pool, mesh=hf.Mesh(dp=pool.world_size // tp, tp=tp))
    assert "HF503" in hf.dataflow(program).check(hf.Deployment(role=place)).codes
