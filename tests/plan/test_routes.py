"""Routes: every cell that is read elsewhere arrives there, once and in time, and nothing else leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.graph.program import Filter
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.payloads import (
    CALLER,
    DRIVER_PROCESS,
    DRIVER_RANK,
    ColumnSlice,
    Payload,
    PayloadKey,
    Process,
    planned_topology,
)
from hfdsl.plan.routes import Hints, Routes, compute_routes
from hfdsl.plan.rows import row_table, runtime_queries
from tests.nightly import examples
from tests.plan.cells import HOME, Cell, Cells
from tests.plan.oracle import B, Place, Program, R, Role, Rows, Total, programs
from tests.plan.switches import switches

many = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def compiled(program: Program, optimize: Optimize) -> CompiledPlan:
    return program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2}, optimize=optimize)


def resolved(
    plan: CompiledPlan, rows: int, hints: Hints | None = None
) -> Iterator[tuple[dict[int, tuple[int, ...]], Routes]]:
    """The routes as queries are resolved one by one: filters keep every other group, rows weigh this and that."""
    results: dict[int, tuple[int, ...]] = {}
    while True:
        table = row_table(plan, plan.dims, results)
        current = compute_routes(plan, table, planned_topology(plan), hints or Hints())
        if not current.early_queries:
            yield dict(results), current
        unresolved = [node for node in current.query_payloads if node not in results]
        if not unresolved:
            return
        query = next(query for query in runtime_queries(plan) if query.node == unresolved[0])
        if query.weighs:
            results[query.node] = tuple(i * i * 7 % 11 for i in range(table.rows[query.ref.node]))
            continue
        op = plan.node(unresolved[0]).op
        assert isinstance(op, Filter)
        source = plan.node(unresolved[0]).batch
        assert source is not None
        results[unresolved[0]] = tuple(i for i in range(table.rows[source.node]) if i // op.group % 2 == 0)


def drawn_hints(plan: CompiledPlan, data: st.DataObject) -> Hints:
    """What a run may measure: any steps may prove short, and any inputs small."""
    short = {step.node for step in plan.steps if data.draw(st.booleans())}
    return Hints(frozenset(short), frozenset(node.id for node in plan.graph.inputs if data.draw(st.booleans())))


class Moves:
    """What routes say, cell by cell."""

    def __init__(self, plan: CompiledPlan, current: Routes) -> None:
        self.plan, self.current = plan, current
        self.sent: dict[PayloadKey, tuple[int, frozenset[Cell]]] = {}  # the place of its segment, its cells
        self.received: dict[Process, list[tuple[int, PayloadKey]]] = {}  # by the place of the segment that receives it
        self.place = {segment.number: i for i, segment in enumerate(current.segments)} | {CALLER: -1}
        self.of_step = {step.node: self.place[s.number] for s in current.segments for step in s.steps}
        for number, payloads in current.driver_sends.items():
            self._add(number, payloads)
        for number, by_rank in current.tasks.items():
            for task in by_rank.values():
                self._add(number, task.sends)
        for segment in current.segments:
            for rank, keys in current.receives[segment.number].items():
                process = DRIVER_PROCESS if rank == DRIVER_RANK else (segment.group, rank)
                self.received.setdefault(process, []).extend((self.place[segment.number], key) for key in keys)
        end = len(current.segments)
        self.received.setdefault(DRIVER_PROCESS, []).extend((end, key) for key in current.result)
        for keys in current.query_payloads.values():
            self.received[DRIVER_PROCESS].extend((end, key) for key in keys)

    def _add(self, segment: int, payloads: tuple[Payload, ...]) -> None:
        for payload in payloads:
            assert payload.key not in self.sent
            cells = [cell for part in payload.slices for cell in self._cells(part)]
            assert len(set(cells)) == len(cells), "a payload has a cell once"
            self.sent[payload.key] = self.place[segment], frozenset(cells)

    def _cells(self, part: ColumnSlice) -> list[Cell]:
        if part.rows is None:
            return [(part.node, part.column, -1, part.chunk)]
        first = self.current.table.bounds[part.node][part.chunk]
        rows: Sequence[int] = range(self.current.table.rows[part.node])
        row_split = self.current.table.splits.get(part.node)
        if row_split is not None and (partition := row_split.partition) is not None:  # chunks have another order
            per_unit = len(rows) // len(partition.places)
            units = [unit for unit in partition.order if unit < len(partition.places)]
            rows = [unit * per_unit + i for unit in units for i in range(per_unit)]
        return [(part.node, part.column, rows[first + row], 0) for low, high in part.rows for row in range(low, high)]


@many
@given(programs(), switches, st.data())
def test_remote_reads_arrive_once_and_in_time(program: Program, optimize: Optimize, data: st.DataObject) -> None:
    plan = compiled(program, optimize)
    *_, (results, current) = resolved(plan, program.rows, drawn_hints(plan, data))
    cells, moves = Cells(plan, program.rows, results), Moves(plan, current)
    custom = {step.node for step in plan.steps if step.custom}
    for process, reads in moves.received.items():
        if process != DRIVER_PROCESS:  # which remembers by itself what it has
            assert set(Counter(key for _, key in reads).values()) <= {1}, "nothing is taken twice"
        assert all(moves.sent[key][0] < place for place, key in reads), "nothing is received before it is sent"
    for step, reader, wanted in cells.read:
        process = HOME if step in custom else reader
        place = moves.of_step.get(step, len(current.segments))
        here = [moves.sent[key][1] for at, key in dict.fromkeys(moves.received.get(process, ())) if at <= place]
        arrived = Counter(cell for payload in dict.fromkeys(here) for cell in payload)
        for cell in wanted:
            in_place = optimize.residency and cells.home[cell] == process
            assert in_place or arrived[cell] == 1, f"{cell} for step {step} in {process}"


@many
@given(programs(), st.booleans(), st.booleans())
def test_nothing_leaves_that_nobody_reads(program: Program, fusion: bool, direct: bool) -> None:
    plan = compiled(program, Optimize(fusion=fusion, direct=direct))
    first = compute_routes(plan, row_table(plan, plan.dims, {}), planned_topology(plan), Hints())
    *_, (results, current) = resolved(plan, program.rows)
    cells, moves, site = Cells(plan, program.rows, results), Moves(plan, current), planned_topology(plan).host_of
    early = {step.node for segment in first.segments for step in segment.steps} | {-1, -2}
    early -= {-1} if results else set()
    early -= {-2} if len(results) > 1 else set()
    custom = {step.node for step in plan.steps if step.custom}
    readers: dict[Cell, set[Any]] = {}
    late: set[int] = set()  # values of which nobody knew who was going to read them when they left
    for step, reader, wanted in cells.read:
        process = HOME if step in custom else reader
        late |= {cell[0] for cell in wanted if step not in early}
        for cell in wanted:
            if cells.home[cell] != process:
                readers.setdefault(cell, set()).add(site(process))
    sent = Counter(cell for _, payload in moves.sent.values() for cell in payload)
    assert set(sent.values()) <= ({1, 2} if direct else {1}), "a cell leaves once each way, for all who read it so"
    assert readers.keys() <= sent.keys()
    assert {cell[0] for cell in sent.keys() - readers.keys()} <= late
    takers = {key for reads in moves.received.values() for _, key in reads}
    unread = [moves.sent[key][1] for key in moves.sent.keys() - takers]
    assert {cell[0] for payload in unread for cell in payload} <= late


def test_calls_that_have_run_are_not_fused_later() -> None:
    """Nobody knows where ``plus`` reads the second ``zero`` before the weights are there: on the rank that made it."""
    place = Place(hf.Mesh(dp=2), hf.ResourcePool([2]), colocate=False)
    zeros, weighed = [("zero", 0, 0), ("zero", 0, 1), ("zero", 0, 2)], ("even_padded", 0, 1)
    program = Program((place,), 3, everything=True, steps=[*zeros, weighed, ("zero", 0, 4), ("plus", 2, 0)])
    before, after = (current for _, current in resolved(compiled(program, Optimize()), program.rows))
    assert [segment.number for segment in before.segments] == [1, 2, 3]
    assert after.segments[:3] == before.segments


@many
@given(programs(), switches, st.data())
def test_a_resolved_filter_changes_no_step_that_has_run(
    program: Program, optimize: Optimize, data: st.DataObject
) -> None:
    plan = compiled(program, optimize)
    rounds = [current for _, current in resolved(plan, program.rows, drawn_hints(plan, data))]
    for before, after in pairwise(rounds):
        later = {segment.number: segment for segment in after.segments}
        for segment in before.segments:
            assert later[segment.number] == segment
            assert before.receives[segment.number] == after.receives[segment.number]
            sends = [{rank: t.sends for rank, t in r.tasks[segment.number].items()} for r in (before, after)]
            assert sends[0] == sends[1]
        assert all(after.driver_sends[number] == payloads for number, payloads in before.driver_sends.items())


# -- bytes, counted by hand


class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def total(self, x: hf.i64[B, R]) -> Total:
        raise NotImplementedError

    @hf.register(hf.Dispatch.DP_PROTO, pad="repeat_last")
    def padded(self, x: hf.i64[B, R]) -> Total:
        raise NotImplementedError

    @hf.register(hf.Dispatch.DP_PROTO, rows=hf.Grouped(4))
    def groups(self, x: hf.i64[B, R]) -> Total:
        raise NotImplementedError

    @hf.register(hf.Dispatch.THREE_D_ALL_MICRO_DP)
    def micro(self, x: hf.i64[B, R]) -> Total:
        raise NotImplementedError

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def three_d(self, x: hf.i64[B, R]) -> Total:
        raise NotImplementedError

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def keepers(self, x: hf.i64[B, R]) -> hf.bool_[B]:
        raise NotImplementedError


@hf.dataflow
def all_rows(rows: Rows, role: Role, judge: Judge) -> Total:
    return judge.total(role.three_d(rows).x)


@hf.dataflow
def three_d_rows(rows: Rows, role: Role, judge: Judge) -> Total:
    return judge.three_d(role.three_d(rows).x)


@hf.dataflow
def micro_rows(rows: Rows, role: Role, judge: Judge) -> Total:
    return judge.micro(role.three_d(rows).x)


@hf.dataflow
def padded_rows(rows: Rows, role: Role, judge: Judge) -> Total:
    return judge.padded(role.three_d(rows).x)


@hf.dataflow
def grouped_rows(rows: Rows, role: Role, judge: Judge) -> Total:
    return judge.groups(role.three_d(rows).x)


@hf.dataflow
def last_half(rows: Rows, role: Role, judge: Judge) -> Total:
    return judge.total(hf.minibatches(role.three_d(rows), 2)[1].x)


@hf.dataflow
def repeated(rows: Rows, role: Role, judge: Judge) -> Total:
    return judge.total(hf.repeat(role.three_d(rows), 2).x)


@hf.dataflow
def both_halves(rows: Rows, role: Role, judge: Judge) -> tuple[Total, Total]:
    first, second = hf.minibatches(role.three_d(rows), 2)
    return judge.total(first.x), judge.total(second.x)


DP: dict[int, hf.Mesh] = {n: hf.Mesh(dp=n) for n in (2, 3, 4, 8)}
Taken = dict[int, list[tuple[int, int]]]
"""What each rank of the judge takes: (rank that makes it, rows)."""


@pytest.mark.parametrize(
    ("flow", "rows", "source", "target", "taken"),
    [
        (all_rows, 16, DP[8], DP[4], {r: [(2 * r, 2), (2 * r + 1, 2)] for r in range(4)}),
        (all_rows, 16, DP[4], DP[8], {r: [(r // 2, 2)] for r in range(8)}),
        (all_rows, 12, DP[3], DP[2], {0: [(0, 4), (1, 2)], 1: [(1, 2), (2, 4)]}),
        # pp first, then dp, then tp: the last stage is ranks 4 to 7, and its tp rank 0 is 4 and 6
        (all_rows, 8, hf.Mesh(pp=2, dp=2, tp=2), DP[4], {0: [(4, 2)], 1: [(4, 2)], 2: [(6, 2)], 3: [(6, 2)]}),
        (three_d_rows, 8, DP[4], hf.Mesh(dp=2, tp=2), {0: [(0, 2), (1, 2)], 1: [(0, 2), (1, 2)],
                                                       2: [(2, 2), (3, 2)], 3: [(2, 2), (3, 2)]}),
        # four tensor-parallel ranks generate as two pairs, every other rank a pair: each pair takes a half
        (micro_rows, 8, DP[2], hf.Mesh(dp=1, tp=4, gen_tp=2), {0: [(0, 4)], 1: [(1, 4)], 2: [(0, 4)], 3: [(1, 4)]}),
        (padded_rows, 6, DP[2], DP[4], {0: [(0, 2)], 1: [(0, 1), (1, 1)], 2: [(1, 2)], 3: [(1, 1)]}),
        (grouped_rows, 12, DP[4], DP[3], {0: [(0, 3), (1, 1)], 1: [(1, 2), (2, 2)], 2: [(2, 1), (3, 3)]}),
        (last_half, 8, DP[4], DP[2], {0: [(2, 2)], 1: [(3, 2)]}),
        (repeated, 4, DP[2], DP[4], {0: [(0, 1)], 1: [(0, 1)], 2: [(1, 1)], 3: [(1, 1)]}),
    ],
)  # fmt: skip  # a table
def test_rows_on_their_way(
    flow: hf.Dataflow[..., Any], rows: int, source: hf.Mesh, target: hf.Mesh, taken: Taken
) -> None:
    # A node for every rank of the judge: what goes to one of them goes to it alone.
    pools = hf.ResourcePool([source.world_size], name="a"), hf.ResourcePool([1] * target.world_size, name="b")
    deployment = hf.Deployment(
        role=hf.place(Role, 2, pool=pools[0], mesh=source), judge=hf.place(Judge, pool=pools[1], mesh=target)
    )
    plan = flow.compile(deployment, dims={B: rows, R: 2})
    current = compute_routes(plan, row_table(plan, plan.dims), planned_topology(plan))
    segment = current.segments[-1]
    payloads = {
        payload.key: payload for by_rank in current.tasks.values() for t in by_rank.values() for payload in t.sends
    }
    arrived = {rank: Counter[int]() for rank in segment.ranks}
    for rank, keys in current.receives[segment.number].items():
        for key in keys:
            arrived[rank][key[1]] += sum(
                last - first for part in payloads[key].slices for first, last in part.rows or ()
            )
    assert {rank: sorted(rows.items()) for rank, rows in arrived.items()} == taken
    assert {
        part.column for payload in payloads.values() for part in payload.slices if payload.key[0] != segment.number
    } == {"x"}
