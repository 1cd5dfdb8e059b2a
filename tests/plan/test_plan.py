"""The plan itself: what every edge carries, what overlaps, how it prints, and what is refused before launch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings

import hfdsl as hf
from hfdsl.check.report import CheckError
from hfdsl.graph.signatures import ListType
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.payloads import planned_topology
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.routes import compute_routes
from hfdsl.plan.rows import row_table
from hfdsl.types.numbers import byte_amount
from tests.nightly import examples
from tests.plan.cells import Cell, Cells
from tests.plan.oracle import B, Program, R, Role, Rows, Total, plus, programs

# -- bytes


def count(plan: CompiledPlan, rows: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(source, target) -> (bytes read, bytes from another process), cell by cell.

    What a pair of functions distributes moves to the driver, once, whatever the functions send on.
    """
    cells = Cells(plan, rows)
    counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    custom = {step.node for step in plan.steps if step.custom}
    for step in custom:
        for cell in frozenset[Cell]().union(*(wanted for reader, _, wanted in cells.read if reader == step)):
            for i in range(2):
                counts[cell[0], step][i] += cells.width(cell)
    for step, process, wanted in cells.read:
        for cell in wanted if step not in custom else ():
            counts[cell[0], step][0] += cells.width(cell)
            counts[cell[0], step][1] += cells.width(cell) * (cells.home[cell] != process)
    return {pair: (total, moved) for pair, (total, moved) in counts.items()}


def weighed_by(plan: CompiledPlan, node: int) -> set[int]:
    """By which weights the rows of a step's result are balanced, which nobody knows before it runs."""
    step = next((step for step in plan.steps if step.node == node), None)
    if step is None or step.balance is not None:
        return {step.balance.query} if step is not None and step.balance is not None else set()
    padded = {step.node for step in plan.steps if step.pad is not None}
    followed = (by for node in step.follows if node not in padded and (by := weighed_by(plan, node)))
    return next(followed, set()) if step.chunks > 1 else set()


@settings(max_examples=examples(150))
@given(programs())
def test_edges_count_every_cell_that_a_rank_reads(program: Program) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2})
    counted = count(plan, program.rows)
    for edge in plan.edges:
        if isinstance(plan.node(edge.source).result, ListType):
            assert (edge.bytes, edge.moved) == (None, None)
            continue
        target, (total, moved) = plan.node(edge.target), counted.get((edge.source, edge.target), (0, 0))
        most = total if weighed_by(plan, edge.source) != weighed_by(plan, edge.target) else moved
        assert (edge.bytes, edge.moved) == (total, most), target.label
        assert edge.moved == 0 or edge.transport != "in process"
    pairs = {(edge.source, edge.target) for edge in plan.edges}
    assert {pair for pair, (total, _) in counted.items() if total and pair[1] >= 0} <= pairs


def test_unknown_sizes_are_unknown_bytes() -> None:
    @hf.dataflow
    def flow(rows: Rows, role: Role) -> Rows:
        return role.flat(role.three_d(rows))

    deployment = hf.Deployment(role=hf.place(Role, 2, pool=hf.ResourcePool([2])))
    sizes: list[dict[type[hf.Dim], int]] = [{B: 4, R: 2}, {B: 4}, {}]
    edges_by_sizes = [flow.compile(deployment, dims=dims).edges for dims in sizes]
    assert [[edge.bytes for edge in edges] for edges in edges_by_sizes] == [
        [4 * 24, 4 * 24],
        [None, None],
        [None, None],
    ]


# -- what travels


class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def total(self, x: hf.i64[B, R]) -> Total:
        return Total(total=int(x.tensor.sum()), largest=int(x.tensor.max()))


def test_a_column_is_read_by_those_who_take_it_alone() -> None:
    @hf.dataflow
    def flow(rows: Rows, role: Role, judge: Judge) -> Total:
        return judge.total(role.flat(rows).x)

    apart = hf.Deployment(
        role=hf.place(Role, 2, pool=hf.ResourcePool([2], name="a")),
        judge=hf.place(Judge, pool=hf.ResourcePool([2], name="b")),
    )
    plan = flow.compile(apart, dims={B: 4, R: 2})
    assert [(edge.columns, edge.bytes, edge.moved, edge.transport) for edge in plan.edges] == [
        (("x", "name", "y", "echo"), 96, 96, "from caller"),
        (("x",), 64, 64, "cuda ipc"),
    ]
    pool = hf.ResourcePool([2], name="a")
    together = hf.Deployment(role=hf.place(Role, 2, pool=pool), judge=hf.place(Judge, pool=pool))
    plan = flow.compile(together, dims={B: 4, R: 2})
    assert [(edge.moved, edge.transport) for edge in plan.edges][1:] == [(0, "in process")]
    separate = hf.Deployment(role=hf.place(Role, 2, pool=pool), judge=hf.place(Judge, pool=pool, colocate=False))
    assert [edge.transport for edge in flow.compile(separate, dims={B: 4, R: 2}).edges][1:] == ["cuda ipc"]


def test_a_function_runs_where_its_rows_are() -> None:
    @hf.dataflow
    def flow(rows: Rows, role: Role) -> tuple[Rows, Rows]:
        return plus(role.flat(rows), 1), plus(rows, 1)

    deployment = hf.Deployment(role=hf.place(Role, 2, pool=hf.ResourcePool([4], name="a")))
    plan = flow.compile(deployment, dims={B: 8, R: 2})
    after, before = plan.steps[1:]
    assert (after.group, after.ranks, after.chunks) == ("role", (0, 1, 2, 3), 4)
    assert (before.group, before.ranks) == (DRIVER, (0,))
    assert flow.compile(deployment).steps[1].chunks == 1, "rows that may not divide are not split"


# -- schedule


def test_roles_on_disjoint_devices_overlap_and_others_do_not() -> None:
    @hf.dataflow
    def flow(rows: Rows, a: Role, b: Role, c: Role) -> tuple[Rows, Rows, Rows]:
        first = a.flat(rows)
        return b.flat(first), c.flat(first), a.flat(first)

    all_gpus = hf.ResourcePool([4], name="all")
    left, right = all_gpus.split([2, 2])

    def stages(a: hf.ResourcePool, b: hf.ResourcePool, c: hf.ResourcePool) -> list[int]:
        places = {name: hf.place(Role, 2, pool=pool) for name, pool in (("a", a), ("b", b), ("c", c))}
        return [step.level for step in flow.compile(hf.Deployment(**places), dims={B: 8}).steps]

    assert stages(left, left, right) == [1, 2, 2, 3]
    assert stages(all_gpus, all_gpus, all_gpus) == [1, 2, 3, 4]
    assert stages(all_gpus, left, right) == [1, 2, 2, 3], "parts of a pool are its devices"
    assert stages(left, right, hf.ResourcePool([2], name="other")) == [1, 2, 2, 2]


def test_a_value_is_dropped_after_its_last_reader_in_each_process() -> None:
    @hf.dataflow
    def flow(rows: Rows, a: Role, b: Role) -> Rows:
        first = a.flat(rows)
        second = b.flat(first)
        third = a.both(first, second)
        return b.both(third, second)

    pools = hf.ResourcePool([1], name="a"), hf.ResourcePool([1], name="b")
    plan = flow.compile(hf.Deployment(a=hf.place(Role, 2, pool=pools[0]), b=hf.place(Role, 2, pool=pools[1])))
    current = compute_routes(plan, row_table(plan, {B: 4, R: 2}), planned_topology(plan))
    dropped = {step: set(nodes) for by_rank in current.tasks.values() for step, nodes in by_rank[0].drops.items()}
    assert dropped == {1: {0}, 2: {1}, 3: {1, 2}, 4: {3, 2}}


# -- print


def test_a_plan_prints_processes_steps_and_sums() -> None:
    @hf.dataflow
    def flow(rows: Rows, role: Role, judge: Judge) -> Total:
        return judge.total(plus(role.three_d(hf.repeat(rows, 2)), 1).x)

    plan = flow.compile(
        hf.Deployment(
            role=hf.place(Role, 2, pool=hf.ResourcePool([4], name="train"), mesh=hf.Mesh(dp=2, tp=2)),
            judge=hf.place(Judge, pool=hf.ResourcePool([1], use_gpu=False, name="judge")),
        ),
        dims={B: 4, R: 2},
    )
    text = str(plan)
    for part in ("flow", "B=4", "train", "Role", "judge", "role.three_d", "plus", "judge.total", "overlap"):
        assert part in text
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**30, "3.0 GiB"),
        (2**52, "4096.0 TiB"),
        (1024**31, f"{1024**27}.0 TiB"),
    ],
)
def test_amounts(size: int, text: str) -> None:
    assert byte_amount(size) == text


# -- what is refused


class Numbers(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> float:
        return 1.0

    @hf.register(hf.Dispatch.DP_PROTO)
    def sample(self, count: int) -> Rows:
        raise NotImplementedError

    @hf.register(hf.Dispatch.ALL_TO_ALL)
    def each(self, number: int) -> int:
        return number

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def ranks(self) -> int:
        return self.rank


@hf.dataflow
def joins_numbers(rows: Rows, a: Numbers, b: Numbers) -> float:
    return a.score(rows)


@hf.dataflow
def splits_nothing(rows: Rows, a: Numbers, b: Numbers) -> Rows:
    return a.sample(8)


@hf.dataflow
def too_short(rows: Rows, a: Numbers, b: Numbers) -> hf.PerRank[int]:
    return a.each(hf.PerRank([1, 2, 3]))


@hf.dataflow
def other_ranks(rows: Rows, a: Numbers, b: Numbers) -> hf.PerRank[int]:
    return a.each(b.ranks())


@hf.dataflow
def one_number(rows: Rows, a: Numbers, b: Numbers) -> hf.PerRank[int]:
    return a.each(3)  # type: ignore[arg-type]  # a mistake on purpose


@pytest.mark.parametrize(
    ("flow", "code", "text"),
    [
        (joins_numbers, "HF417", "'a.score' gives float from each of 2 chunks, but no reduction says"),
        (splits_nothing, "HF413", "'a.sample' returns Rows from no rows: DP_PROTO has nothing to split over 2 chunks"),
        (too_short, "HF411", "port 'number' of 'a.each' gets a list of 3, and needs one value for each of 2 ranks"),
        (other_ranks, "HF402", "port 'number' of 'a.each' gets a list of 4, and needs one value for each of 2 ranks"),
        (one_number, "HF401", "port 'number' of 'a.each' takes PerRank[int]"),
    ],
)
def test_conversions_that_would_lose_values_are_refused(flow: hf.Dataflow[..., Any], code: str, text: str) -> None:
    deployment = hf.Deployment(
        a=hf.place(Numbers, pool=hf.ResourcePool([2])), b=hf.place(Numbers, pool=hf.ResourcePool([4]))
    )
    with pytest.raises(CheckError) as error:
        flow.compile(deployment, dims={B: 8})
    [finding] = error.value.report.errors
    assert finding.code == error.value.code == code
    assert finding.message.startswith(text)
    alone = hf.Deployment(
        a=hf.place(Numbers, pool=hf.ResourcePool([1])), b=hf.place(Numbers, pool=hf.ResourcePool([1]))
    )
    assert flow.check(alone, dims={B: 8}).ok == (flow not in (too_short, one_number))
