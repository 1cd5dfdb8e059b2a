# mypy: disable-error-code="empty-body"
"""Tensor-parallel groups: where they cross nodes, and the narrower ones that are offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_group_across_the_boundary_of_nodes_is_reported() -> None:
    assert check(ResourcePool([2, 6]), hf.Mesh(dp=2, tp=4)).codes == ("HF503",)
    assert check(ResourcePool([4, 4]), hf.Mesh(dp=2, tp=4)).codes == ()
    assert check(ResourcePool([3, 5]), hf.Mesh(dp=8)).codes == ()
    left, right = ResourcePool([4, 4]).split([6, 2])
    assert check(left.merge(right), hf.Mesh(dp=2, tp=4)).codes == ()  # what ends after six ranks is a part of the node
    assert check(right.merge(left), hf.Mesh(dp=2, tp=4)).codes == ("HF503",)  # two ranks of one, then of the other


def test_groups_that_are_no_runs_of_ranks_are_a_layout_of_choice_on_an_unknown_cluster() -> None:
    assert check(ResourcePool([2, 6]), hf.Mesh(dp=2, tp=4, order=("pp", "tp", "dp"))).codes == ()


def described(pool: ResourcePool) -> hf.Cluster:
    """Nodes that hold the pool, and are not linked."""
    return hf.Cluster(hf.Nodes(len(pool.processes) + 1, gpus=max(pool.processes), gpu_memory_gib=80, cpus=96))


@pytest.mark.parametrize(
    ("nodes", "mesh", "ranks", "ends"),
    [
        ([2, 6], hf.Mesh(dp=2, tp=4, order=("pp", "tp", "dp")), "1, 3, 5, 7", 1),
        ([8, 8], hf.Mesh(dp=2, tp=8, order=("pp", "tp", "dp")), "1, 3, 5, 7, ...", 7),
        ([4, 4], hf.Mesh(dp=4, tp=2, order=("tp", "dp", "pp")), "3, 7", 3),
        ([4, 4], hf.Mesh(pp=2, dp=2, tp=2, gen_tp=1, order=("pp", "tp", "dp")), None, 0),  # a stage fills a node
        ([8], hf.Mesh(dp=2, tp=4, order=("tp", "pp", "dp")), None, 0),
    ],
)
def test_the_order_of_axes_may_number_a_group_across_nodes(
    nodes: list[int], mesh: hf.Mesh, ranks: str | None, ends: int
) -> None:
    pool = ResourcePool(nodes)
    findings = check(pool, mesh, described(pool)).findings
    assert [finding.code for finding in findings] == ([] if ranks is None else ["HF503"])
    for finding in findings:
        assert f"ranks {ranks} are one group of the order {mesh.order}" in finding.message
        assert finding.message.endswith(f"has a node boundary after rank {ends}")


@given(
    st.permutations(["pp", "dp", "tp"]),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)),
    st.data(),
)
def test_a_crossing_is_found_where_a_group_has_ranks_on_two_nodes(
    order: list[Any], sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    pp, dp, tp = sizes
    mesh = hf.Mesh(pp=pp, dp=dp, tp=tp, order=tuple(order))
    nodes, ranks_left = list[int](), mesh.world_size
    while ranks_left:
        nodes.append(data.draw(st.integers(1, ranks_left)))
        ranks_left -= nodes[-1]
    node_of = [node for node, slots in enumerate(nodes) for _ in range(slots)]
    groups: dict[tuple[int, int], set[int]] = {}
    for rank in range(mesh.world_size):
        at = mesh.coordinates(rank)
        groups.setdefault((at.pp, at.dp), set()).add(node_of[rank])
    crosses = any(len(used) > 1 for used in groups.values())
    pool = ResourcePool(nodes)
    assert ("HF503" in check(pool, mesh, described(pool), rows=36).codes) is crosses


def test_tp_innermost_is_offered_where_it_keeps_groups_on_a_node() -> None:
    pool = ResourcePool([4, 4])
    [finding] = check(pool, hf.Mesh(dp=2, tp=4, order=("tp", "pp", "dp")), described(pool)).findings
    [help_line] = finding.help
    assert help_line == "number the ranks of a group one after another: hf.Mesh(dp=2, tp=4)"


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
