"""Segments: nobody waits longer because calls were fused, and what must not meet does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.deploy.pools import devices
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.optimize import NOTHING, Optimize
from hfdsl.plan.payloads import DRIVER_RANK, PayloadKey, planned_topology
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.routes import Routes, compute_routes
from hfdsl.plan.rows import row_table, runtime_queries
from tests.nightly import examples
from tests.plan.oracle import B, Place, Program, R, Role, Rows, programs

many = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

Call = tuple[int, int]
"""A segment and a rank."""


def all_routes(plan: CompiledPlan) -> tuple[Routes, dict[int, list[PayloadKey]]]:
    """The routes once every filter has kept its first group of rows; what the driver saw before it submitted what."""
    results: dict[int, tuple[int, ...]] = {}
    saw: dict[int, list[PayloadKey]] = {}
    while True:
        current = compute_routes(plan, row_table(plan, plan.dims, results), planned_topology(plan))
        for segment in current.segments:
            saw.setdefault(segment.number, [key for node in results for key in current.query_payloads[node]])
        unresolved = [node for node in current.query_payloads if node not in results]
        if not unresolved:
            return current, saw
        query = next(query for query in runtime_queries(plan) if query.node == unresolved[0])
        group = getattr(plan.node(query.node).op, "group", 1)
        weights = range(current.table.rows[query.ref.node], 0, -1)
        results[query.node] = tuple(weights if query.weighs else range(group))


def ends(
    plan: CompiledPlan, seconds: Mapping[tuple[int, int], int], lockstep: bool = False
) -> dict[tuple[int, int], int]:
    """When every rank's part of every step ends: a call starts once all that it receives and waits for is there.

    A payload is there when the call that makes it has ended; a process does its calls one by one, in the order in which
    they were submitted. ``seconds`` are what steps take on ranks.
    """
    current, saw = all_routes(plan)
    call_over: dict[Call, int] = {}
    free: dict[tuple[str, int], int] = {}
    over: dict[tuple[int, int], int] = {}
    for segment in current.segments:
        receives = current.receives[segment.number]
        after = segment.after or (None,) * len(segment.ranks)
        driver_payloads = [key for key in receives.get(DRIVER_RANK, ()) if segment.custom]
        begins: dict[int, int] = {}
        for rank, before in zip(segment.ranks, after, strict=True):
            waits = [
                call_over[key[0], key[1]]
                for key in (*receives.get(rank, ()), *driver_payloads, *saw[segment.number])
                if key[0] >= 0
            ]
            waits += [call_over[before]] if before is not None else []
            begins[rank] = max([free.get((segment.group, rank), 0), *waits])
        for rank, begin in begins.items():
            now = max(begins.values()) if lockstep else begin
            for step in segment.steps:
                if rank in step.ranks:
                    now += seconds[step.node, rank]
                    over[step.node, rank] = now
            call_over[segment.number, DRIVER_RANK if segment.group == DRIVER else rank] = now
            free[segment.group, rank] = now
        if segment.custom:
            call_over[segment.number, DRIVER_RANK] = max(call_over[segment.number, rank] for rank in segment.ranks)
    return over


def compiled(program: Program, optimize: Optimize) -> CompiledPlan:
    return program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2}, optimize=optimize)


def test_a_call_that_others_wait_for_is_not_made_longer() -> None:
    """``b`` reads the first value of ``a`` and not the second, which is made meanwhile."""

    @hf.dataflow
    def flow(rows: Rows, a: Role, b: Role) -> tuple[Rows, Rows]:
        first = a.flat(rows)
        return b.flat(first), a.flat(first)

    @hf.dataflow
    def both(rows: Rows, a: Role, b: Role) -> Rows:
        first = a.flat(rows)
        return b.both(first, a.flat(first))

    pools = hf.ResourcePool([2]), hf.ResourcePool([2])
    deployment = hf.Deployment(a=hf.place(Role, 2, pool=pools[0]), b=hf.place(Role, 2, pool=pools[1]))
    plan, waiting = (body.compile(deployment, {B: 4, R: 2}) for body in (flow, both))
    assert [len(segment.steps) for segment in all_routes(plan)[0].segments] == [1, 1, 1]
    assert [len(segment.steps) for segment in all_routes(waiting)[0].segments] == [2, 1]
    seconds = {(step.node, rank): 10 for step in plan.steps for rank in step.ranks}
    assert max(ends(plan, seconds).values()) == 20


def without_fusion(plan: CompiledPlan) -> CompiledPlan:
    return replace(plan, optimize=Optimize(fusion=False))


def test_a_rank_may_wait_for_a_slow_rank_of_a_call_that_was_fused() -> None:
    """The limit of the argument: ranks that begin a step at different times.

    ``source`` waits for ``slow`` on its second device alone. The second rank of ``reader`` reads the first half of
    ``source`` for one step, which is there at once, and the second half for the next. ``both`` waits for the first step
    on both ranks and for the second step on the first rank, hence for the second rank only because of the fusion.
    """
    pool = hf.ResourcePool([2], name="shared")
    pools = [pool.split([1, 1])[1], pool, hf.ResourcePool([2], name="reader"), hf.ResourcePool([2], name="both")]
    places = tuple(Place(hf.Mesh(dp=pool.world_size), pool, colocate=True) for pool in pools)
    slow, source, first_half, both = ("three_d", 0, 0), ("three_d", 1, 0), ("part", 2, 2, 0), ("both", 3, 4, 6)
    reader = [("three_d", 2, 3), ("three_d", 2, 2), ("part", 5, 2, 0)]
    plan = compiled(Program(places, 8, True, [slow, source, first_half, *reader, both]), Optimize())
    seconds = {(step.node, rank): int(step.group in ("role0", "role3")) for step in plan.steps for rank in step.ranks}
    assert [len(segment.steps) for segment in all_routes(plan)[0].segments] == [1, 1, 2, 1]
    assert [max(ends(variant, seconds).values()) for variant in (plan, without_fusion(plan))] == [2, 1]
    assert [max(ends(variant, seconds, lockstep=True).values()) for variant in (plan, without_fusion(plan))] == [2, 2]


@many
@given(programs(), st.data())
def test_a_step_never_ends_later_for_calls_that_were_fused(program: Program, data: st.DataObject) -> None:
    """However long a step takes, on ranks that work in lockstep."""
    plan = compiled(program, Optimize())
    durations = {step.node: data.draw(st.sampled_from([0, 1, 10, 100])) for step in plan.steps}
    seconds = {(step.node, rank): durations[step.node] for step in plan.steps for rank in step.ranks}
    fused, single = (ends(variant, seconds, lockstep=True) for variant in (plan, without_fusion(plan)))
    assert fused.keys() == single.keys()
    assert max(fused.values(), default=0) <= max(single.values(), default=0)


@many
@given(programs(), st.booleans())
def test_steps_on_one_device_run_in_program_order_one_after_another(program: Program, fusion: bool) -> None:
    plan = compiled(program, Optimize(fusion=fusion))
    current, _ = all_routes(plan)
    slots = {group.name: devices(group.pool) for group in plan.groups}
    ran: dict[tuple[str, int], list[tuple[int, str, int]]] = {}  # by device: (segment, group, rank)
    steps: dict[tuple[str, int], list[int]] = {}
    for segment in current.segments:
        if segment.group == DRIVER:
            continue
        for rank, before in zip(segment.ranks, segment.after, strict=True):
            calls = ran.setdefault(slots[segment.group][rank], [])
            previous = calls[-1] if calls and calls[-1][1] != segment.group else None
            assert before == (None if previous is None else (previous[0], previous[2])), (
                "a process has an order of its own"
            )
            calls.append((segment.number, segment.group, rank))
            in_order = steps.setdefault(slots[segment.group][rank], [])
            in_order += [step.node for step in segment.steps if rank in step.ranks]
    assert all(nodes == sorted(nodes) for nodes in steps.values())
    nodes = sorted(step.node for segment in current.segments for step in segment.steps)
    assert nodes == [step.node for step in plan.steps], "every step is in one segment"


@given(programs())
def test_without_fusion_every_step_is_a_call(program: Program) -> None:
    current, _ = all_routes(compiled(program, NOTHING))
    assert all(len(segment.steps) == 1 for segment in current.segments)
