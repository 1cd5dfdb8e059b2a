"""Payloads: the cells of a chunk cover what is read of it, none twice, each with exactly those who read it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.plan.deliveries import RemoteReads
from hfdsl.plan.payloads import DRIVER_PROCESS, planned_topology
from hfdsl.protocols.ranges import merged
from tests.plan.oracle import B, R, Role, Rows

spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: (min(ends), max(ends)))
wanted = st.lists(st.tuples(st.sampled_from("stuv"), st.sampled_from(["x", "y"]), spans), max_size=12)


@given(wanted, st.sets(st.sampled_from("stuv")))
def test_every_row_goes_once_to_exactly_those_who_read_it(
    requests: list[tuple[str, str, tuple[int, int]]], value_destinations: set[str]
) -> None:
    remote = RemoteReads()
    readers: dict[tuple[str, int], set[str]] = {}
    for site, column, (first, last) in requests:
        remote.add(site, column, ((first, last),))
        for row in range(first, last):
            readers.setdefault((column, row), set()).add(site)
    for site in sorted(value_destinations):
        remote.add(site, "all", None)
    leaving: dict[tuple[str, int], set[str]] = {}
    columns: dict[str, set[str]] = {}
    for column, rows, sites in remote.slices():
        columns.setdefault(column, set()).update(str(site) for site in sites)
        assert (rows is None) is (column == "all")
        assert rows is None or list(rows) == list(merged(rows)), "in order, and none of them touch"
        for first, last in rows or ():
            for row in range(first, last):
                assert (column, row) not in leaving, "no row leaves twice"
                leaving[column, row] = {str(site) for site in sites}
    assert leaving == readers
    asking: dict[str, set[str]] = {}
    for site, column, _ in requests:
        asking.setdefault(column, set()).add(site)
    assert columns == asking | ({"all": value_destinations} if value_destinations else {}), (
        "no rows have a dtype and a shape too"
    )


@given(st.lists(spans))
def test_merged_rows_are_each_there_once(given_spans: list[tuple[int, int]]) -> None:
    rows = [row for first, last in merged(given_spans) for row in range(first, last)]
    assert rows == sorted({row for first, last in given_spans for row in range(first, last)})


def test_processes_on_one_node_of_a_pool_are_at_one_site() -> None:
    @hf.dataflow
    def flow(rows: Rows, a: Role, b: Role, c: Role) -> Rows:
        return c.flat(b.flat(a.flat(rows)))

    nodes = hf.ResourcePool([2, 1], name="one")
    front, back = nodes.split([1, 2])
    places = {"a": hf.place(Role, 2, pool=nodes), "b": hf.place(Role, 2, pool=back, colocate=False)}
    places["c"] = hf.place(Role, 2, pool=hf.ResourcePool([1], name="other"))
    plan = flow.compile(hf.Deployment(**places), dims={B: 6, R: 2})
    site = planned_topology(plan).host_of
    assert site(("a", 0)) == site(("a", 1)) == site(("b", 0))
    assert site(("a", 2)) == site(("b", 1))
    assert len({site(("a", 0)), site(("a", 2)), site(("c", 0)), site(DRIVER_PROCESS)}) == 4
    assert front.world_size == 1
