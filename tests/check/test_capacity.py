# mypy: disable-error-code="empty-body"
"""Pools that a cluster has no room for: the numbers in the message, and the other pools that are suggested."""

from __future__ import annotations

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.capacity import shape
from hfdsl.check.findings import Finding
from hfdsl.check.report import Report
from hfdsl.check.rules.placement.resources import _shorter
from hfdsl.deploy.pools import ResourcePool as Pool
from tests.check.test_resources import FLOWS, ROWS, Role, Rows, check


def nodes(*gpus: int, cpus: float = 96) -> hf.Cluster:
    """A cluster of nodes with so many GPUs."""
    return hf.Cluster(*(hf.Nodes(1, gpus=n, gpu_memory_gib=80 if n else None, cpus=cpus) for n in gpus))


def gpus(*shapes: list[int]) -> list[Pool]:
    return [Pool(processes, name=name) for name, processes in zip("pqr", shapes, strict=False)]


def cpus(slots: int) -> Pool:
    return Pool([slots], use_gpu=False, name="host")


def refused(places: list[Pool], cluster: hf.Cluster) -> Finding:
    [finding] = check(places, cluster).findings
    return finding


@pytest.mark.parametrize(
    ("places", "cluster", "message"),
    [
        (gpus([8], [1]), nodes(4, 4), "pool 'p' [8] needs 8 GPUs on one node, and no node of the cluster has so many"),
        (
            gpus([4], [4]),
            nodes(6, 2),
            "pools 'p' [4] and 'q' [4] need 4 GPUs on one node 2 times, and the nodes have that 1 time",
        ),
        (
            gpus([4], [4], [4]),
            nodes(6, 6),
            "pools 'p' [4], 'q' [4] and 'r' [4] need 4 GPUs on one node 3 times, and the nodes have that 2 times",
        ),
        (
            gpus([3], [5]),
            nodes(2, 6),
            "pools 'p' [3] and 'q' [5] need 8 GPUs, and the cluster has 8, but no layout on its nodes fits these parts",
        ),
        ([*gpus([4], [4]), cpus(4)], nodes(4), "pools 'p' [4] and 'q' [4] need 8 GPUs, and the cluster has 4"),
        (
            [cpus(110)],
            nodes(0, 0, cpus=8),
            "pool 'host' [110] needs 11 CPUs on one node, and no node of the cluster has so many",
        ),
        (
            [cpus(110)],
            nodes(0, cpus=8),
            "pool 'host' [110] needs 11 CPUs, 0.1 a process slot, and the cluster has 8",
        ),
    ],
)
def test_the_numbers_that_refute_pools(places: list[Pool], cluster: hf.Cluster, message: str) -> None:
    assert refused(places, cluster).message == message


def test_the_first_pool_that_has_no_room_beside_those_before_it_is_marked() -> None:
    finding = refused(gpus([4], [2, 2], [4]), nodes(4))
    assert finding.primary.text == "4 GPUs for 'b'"
    assert [label.text for label in finding.related[:2]] == ["4 GPUs for 'a'", "4 GPUs for 'c'"]
    assert refused([cpus(110)], nodes(0, cpus=8)).primary.text == "11 CPUs for 'a'"


def test_of_many_pools_four_are_named() -> None:
    @hf.dataflow
    def six(rows: Rows, a: Role, b: Role, c: Role, d: Role, e: Role, f: Role) -> list[Rows]:
        return [role.score(rows) for role in (a, b, c, d, e, f)]

    places = {name: hf.place(Role, pool=Pool([4], name=f"p{i}")) for i, name in enumerate("abcdef", 1)}
    [finding] = six.check(hf.Deployment(**places), ROWS, nodes(4)).findings
    listed = "pools 'p1' [4], 'p2' [4], 'p3' [4], 'p4' [4] and 2 more"
    assert finding.message == f"{listed} need 24 GPUs, and the cluster has 4"


def test_a_role_on_a_pool_twice_is_named_once() -> None:
    left, right = Pool([4], name="p").split([2, 2])
    assert refused([right.merge(left)], nodes(2)).primary.text == "4 GPUs for 'a'"


def test_of_two_pools_of_one_name_the_first_counts() -> None:
    assert check([Pool([4], name="p"), Pool([4, 4], name="p")], nodes(4)).codes == ("HF514",)


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ((8,) * 8, "[8, 8, 8, 8, 8, 8, 8, 8]"),
        ((8,) * 9, "[8] * 9"),
        ((4,) * 8 + (2,), "[4, 4, 4, 4, ... 9 nodes]"),
    ],
)
def test_many_nodes_are_written_in_short(processes: tuple[int, ...], text: str) -> None:
    assert shape(processes) == text


# -- what is offered


def test_fewer_nodes_are_tried_by_eighths_and_fewer_slots_of_one_by_ones() -> None:
    assert [len(nodes) for nodes in _shorter((8,) * 24, 8)] == [23, 21, 18, 15, 12, 9, 6, 3, 1]
    assert [len(nodes) for nodes in _shorter((8,) * 3, 8)] == [2, 1]
    assert list(_shorter((4,), 8)) == [(3,), (2,), (1,)]
    assert list(_shorter((400_000,), 2)) == [(2,), (1,)]


@pytest.mark.parametrize(
    ("places", "cluster", "help_lines"),
    [
        (gpus([2]), nodes(1, 1), ("spread 'p' over nodes of 1 GPU: hf.ResourcePool([1, 1])",)),
        (gpus([4]), nodes(2, 2), ("spread 'p' over nodes of 2 GPUs: hf.ResourcePool([2, 2])",)),
        (gpus([2]), nodes(1), ("hf.ResourcePool([1]) for 'p' fits; give 'a' hf.Mesh()",)),
        (gpus([4]), nodes(0), ()),
        ([*gpus([4]), cpus(4)], nodes(2), ("hf.ResourcePool([2]) for 'p' fits; give 'a' hf.Mesh(dp=2)",)),
    ],
    ids=["spread over single GPUs", "spread over pairs", "one GPU", "no GPUs at all", "not on a pool without GPUs"],
)
def test_pools_that_are_offered(places: list[Pool], cluster: hf.Cluster, help_lines: tuple[str, ...]) -> None:
    assert refused(places, cluster).help == help_lines


def test_pools_without_certain_capacity_are_not_suggested() -> None:
    """Spread as 7 and 1, all would lie on 41 nodes of 7: no quick search finds that out."""
    many = Pool([3] * 39 + [2] * 78, name="many")
    assert refused([many, Pool([8], name="p")], nodes(*[7] * 41)).help == ()


def helped(cluster: hf.Cluster, **meshes: tuple[Pool, hf.Mesh]) -> tuple[str, ...]:
    places = {name: hf.place(Role, pool=pool, mesh=mesh) for name, (pool, mesh) in meshes.items()}
    report: Report = FLOWS[len(places)].check(hf.Deployment(**places), ROWS, cluster)
    [finding] = report.findings
    return finding.help


def test_a_pool_that_the_model_does_not_divide_is_not_offered() -> None:
    p, q = gpus([4], [3])
    assert helped(nodes(4), a=(p, hf.Mesh(dp=4)), b=(q, hf.Mesh(tp=3))) == ()


def test_stages_and_parts_of_layers_stay_as_many() -> None:
    [pool] = gpus([8])
    fits = "hf.ResourcePool([4]) for 'p' fits; give 'a' hf.Mesh(pp=2, tp=2)"
    assert helped(nodes(4), a=(pool, hf.Mesh(pp=2, dp=2, tp=2))) == (fits,)


class Ranking(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Whole)
    def rank_all(self, rows: Rows) -> Rows: ...


def test_where_the_first_pool_does_not_suit_the_role_the_next_is_offered() -> None:
    @hf.dataflow
    def flow(rows: Rows, a: Role, b: Role, c: Ranking) -> tuple[Rows, Rows, Rows]:
        return a.score(rows), b.score(rows), c.rank_all(rows)

    p, q, r = gpus([2], [1], [1])
    places = hf.Deployment(a=hf.place(Role, pool=p), b=hf.place(Role, pool=q), c=hf.place(Ranking, pool=r))
    [finding] = flow.check(places, ROWS, nodes(3)).findings
    assert finding.help == ("place 'c' on pool 'q' beside 'b'",), "on two ranks of 'p' it would not have all rows"
