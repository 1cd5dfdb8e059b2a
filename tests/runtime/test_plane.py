"""The data plane on both backends: program order, one role at a time on a device, nothing shared with the caller."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import RoleError
from hfdsl.plan.optimize import NOTHING, Optimize
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.running import Running
from hfdsl.runtime.step import StepRun
from tests.runtime import plane_programs as p
from tests.runtime.plane_programs import pool, xs
from tests.runtime.renamed import renamed

ROWS = 60_000  # more than travels inline


def apart() -> hf.Deployment:
    return hf.Deployment(p=hf.place(p.Worker, pool=pool(2)), q=hf.place(p.Worker, pool=pool(2)))


def one_pool(colocate: bool) -> hf.Deployment:
    shared = pool(2)
    return hf.Deployment(p=hf.place(p.Worker, pool=shared), q=hf.place(p.Worker, pool=shared, colocate=colocate))


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Any:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


@pytest.fixture(scope="module")
def own_pools(backend: Any) -> Iterator[Running]:
    """A launch for all tests whose roles are on pools of their own; processes take long to start."""
    with p.keeps_all.compile(apart(), {p.B: ROWS}).launch(backend, seed=4) as running:
        yield running


@pytest.fixture(scope="module")
def one_device(backend: Any) -> Iterator[Running]:
    """One for those whose roles have processes of their own on the same slots."""
    shared = pool(2)
    first, counter = hf.place(p.Worker, pool=shared), hf.place(p.Counter, pool=shared)
    place = hf.Deployment(p=first, counter=counter, q=hf.place(p.Worker, pool=shared, colocate=False))
    with p.turns.compile(place, {p.B: 4}).launch(backend, seed=4) as running:
        yield running


@pytest.fixture(scope="module")
def one_process_a_rank(backend: Any) -> Iterator[Running]:
    """One for those that share processes, in which columns are pickled."""
    optimize = Optimize(residency=False, zero_copy=False)
    with p.mixed.compile(one_pool(colocate=True), {p.B: 8}, optimize=optimize).launch(backend, seed=4) as running:
        yield running


def counts(running: Running) -> list[list[float]]:
    return [value.x.tensor.tolist() for _ in range(2) for value in running.step(xs(1.0, -1.0, 2.0, 3.0))]


def test_state_sees_its_calls_in_program_order(one_device: Running) -> None:
    plan = renamed(p.counted, "counted", judge="q").compile(one_device.plan.deployment, {p.B: 4})
    expected = [[1.0] * 4, [2.0] * 2, [3.0] * 4, [4.0] * 4, [5.0] * 2, [6.0] * 4]
    assert counts(one_device.also(plan)) == expected


@pytest.mark.parametrize("optimize", [Optimize(), NOTHING], ids=["all", "nothing"])
@pytest.mark.parametrize("shared", [True, False])
def test_state_sees_its_calls_in_program_order_wherever_it_is(shared: bool, optimize: Optimize) -> None:
    small, large = pool(2), pool(4)
    judge = hf.place(p.Worker, pool=small if shared else large)
    deployment = hf.Deployment(judge=judge, counter=hf.place(p.Counter, pool=small))
    plan = p.counted.compile(deployment, {p.B: 4}, optimize=optimize)
    with plan.launch() as running:
        assert counts(running) == [[1.0] * 4, [2.0] * 2, [3.0] * 4, [4.0] * 4, [5.0] * 2, [6.0] * 4]


def both_ways(launched: Running, flow: hf.Dataflow[..., Any], **dims: Any) -> dict[bool, Running]:
    """With relays and without: these are processes too, and end with the launch."""
    place, by_relay = launched.plan.deployment, dict[bool, Running]()
    for relay in (False, True):
        plan = renamed(flow, f"{flow.body.__name__}_{relay}").compile(place, optimize=Optimize(relay=relay), **dims)
        by_relay[relay] = launched.also(plan)
    return by_relay


@pytest.fixture(scope="module")
def turning(one_device: Running) -> dict[bool, Running]:
    return both_ways(one_device, p.turns, dims={p.B: 4})


@pytest.mark.parametrize("relay", [False, True])
def test_roles_on_one_device_take_turns(turning: dict[bool, Running], relay: bool) -> None:
    turning[relay].step(xs(1.0, 2.0, 3.0, 4.0))
    calls = turning[relay].timeline.calls
    for rank in (0, 1):
        in_order = sorted((call.start, call.stop, call.name) for call in calls if call.process[1] == rank)
        assert [label for _, _, label in in_order] == ["p.work#1", "q.work#1", "p.work#2", "q.work#2"]
        assert all(before[1] <= after[0] for before, after in pairwise(in_order))


@pytest.mark.nightly_cases("ray")
def test_results_belong_to_the_caller(own_pools: Running) -> None:
    """He may write it and keep it: a role that holds the same column does not see that."""
    output, _, _ = own_pools.step(p.X(x=torch.ones(ROWS)))
    output.x.tensor.add_(5)
    _, before, _ = own_pools.step(p.X(x=torch.ones(ROWS)))
    assert before == [2.0 * ROWS] * 2


@pytest.fixture(scope="module")
def relayed(one_device: Running) -> dict[bool, Running]:
    return both_ways(one_device, p.small_results)


@pytest.mark.parametrize("relay", [False, True])
def test_plain_numbers_come_with_the_acknowledgement(relayed: dict[bool, Running], relay: bool) -> None:
    running = relayed[relay]
    for _ in range(2):
        large, share, first = running.step()
        assert (large, share, first) == ([2**70, 2**70 + 1], [0.1, math.inf], [True, False])
        assert all(type(flag) is bool for flag in first)
    tasks = [
        task
        for routing in running._runner.routings.cache.values()
        for by in routing.routes.tasks.values()
        for task in by.values()
    ]
    payloads = [payload for task in tasks for payload in task.sends]
    assert payloads
    assert all(payload.inline for payload in payloads)


@pytest.mark.nightly
def test_a_rank_that_fails_is_reported_while_the_driver_waits_for_its_peer(ray_cluster: Any) -> None:
    deployment = hf.Deployment(p=hf.place(p.Worker, pool=pool(2)))
    plan, message = (
        p.judges.compile(deployment, {p.B: 4}),
        r"'p.judged' raised on rank 1 in step 0: ValueError: no judgement",
    )
    with plan.launch("ray", deadline=60) as running, pytest.raises(RoleError, match=message):
        running.step(xs(1.0, 2.0, 3.0, 4.0))


def bits(value: Any) -> list[Any]:
    output, *sums = value
    columns = [c.tolist() if isinstance(c, torch.Tensor) else c for c in output.__hf_columns__.values()]
    return [*columns, *(batch.total.value for batch in sums)]


def steps(running: Running) -> list[Any]:
    return [bits(running.step(xs(*(step + i / 7 for i in range(8))))) for step in range(2)]


@pytest.mark.nightly_cases("ray")
def test_no_switch_changes_a_bit(own_pools: Running, one_device: Running, one_process_a_rank: Running) -> None:
    for name, running, optimize in (
        ("all", own_pools, Optimize()),
        ("copied", one_process_a_rank, Optimize(residency=False, zero_copy=False)),
        ("whole", own_pools, Optimize(column_pruning=False, row_pruning=False, fusion=False)),
        ("none", one_process_a_rank, NOTHING),
        ("none_apart", one_device, NOTHING),
    ):
        flow = renamed(p.mixed, f"mixed_{name}")  # by which random streams differ
        with flow.compile(one_pool(True), {p.B: 8}, optimize=NOTHING).launch("local", seed=4) as reference:
            expected = steps(reference)
        assert expected[0] != expected[1]
        assert steps(running.also(flow.compile(running.plan.deployment, {p.B: 8}, optimize=optimize))) == expected


# -- what is held when a step is over


@pytest.mark.parametrize("deploy", [apart, lambda: one_pool(True), lambda: one_pool(False)])
@pytest.mark.parametrize("flow", [p.mixed, p.keeps, p.turns])
def test_nothing_is_held_after_a_step(flow: hf.Dataflow[..., Any], deploy: Any) -> None:
    plan = flow.compile(deploy(), {p.B: 4})
    with plan.launch() as running:
        running.step(xs(1.0, 2.0, 3.0, 4.0))
        backend = running._processes.backend
        assert isinstance(backend, LocalBackend)
        executors = [backend.driver, *(e for group in backend._executors.values() for e in group)]
        held = [(e.store._local, e.store._received) for e in executors]
    assert held == [({}, {})] * len(executors)


@pytest.mark.parametrize("flow", [p.mixed, p.keeps, p.sifted])
def test_handles_are_dropped_as_their_parcels_are_taken(
    flow: hf.Dataflow[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end the driver holds what it returns, after a filter too: not what went from worker to worker."""
    started: list[StepRun] = []

    class Recorded(StepRun):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            started.append(self)

    monkeypatch.setattr("hfdsl.runtime.runner.StepRun", Recorded)
    for optimize, all_dropped in ((Optimize(), True), (Optimize(liveness=False), False)):
        with flow.compile(apart(), {p.B: 4}, optimize=optimize).launch() as running:
            running.step(xs(1.0, -2.0, 3.0, 4.0))
        held = started.pop()
        assert (set(held._handles) <= set(held.routes.result)) is all_dropped


def test_values_that_only_a_neighbor_reads_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values go to one node as one payload; each process there drops the one that it does not read."""
    both_halves = pool(4)
    left, right = both_halves.split([2, 2])
    places = {"q": hf.place(p.Worker, pool=left), "r": hf.place(p.Worker, pool=right)}
    plan = p.neighbors.compile(hf.Deployment(p=hf.place(p.Worker, pool=pool(2)), **places), {p.B: 4})
    with plan.launch() as running:
        running.step(xs(1.0, 2.0, 3.0, 4.0))
        backend = running._processes.backend
        assert isinstance(backend, LocalBackend)
        assert [e.store._received for group in backend._executors.values() for e in group] == [{}] * 6


# -- load


SMALL_STORE = """
    import time

    import ray
    import torch

    import hfdsl as hf
    from tests.runtime.plane_programs import B, Worker, X, pool

    class Slow(hf.Worker):
        @hf.register(hf.Dispatch.DP_PROTO)
        def late(self, a: X) -> X:
            time.sleep(0.3)
            return X(x=a.x.tensor + 1)

    @hf.dataflow
    def flow(a: X, p: Worker, q: Slow) -> tuple[X, ...]:
        made = [p.shift(a)]
        for _ in range(5):  # the producer is through before the consumer has begun
            made.append(p.shift(made[-1]))
        return tuple(q.late(one) for one in made)

    rows = 8 * 2**20
    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    placed = hf.Deployment(p=hf.place(Worker, pool=pool(1)), q=hf.place(Slow, pool=pool(1)))
    with flow.compile(placed, {B: rows}).launch("ray", deadline=120) as running:
        print([[bound.item() for bound in one.x.tensor.aminmax()] for one in running.step(X(x=torch.zeros(rows)))])
"""


@pytest.mark.nightly
@pytest.mark.ray
def test_a_store_that_is_smaller_than_a_step_loses_nothing(tmp_path: Path) -> None:
    """Six columns of 32 MiB wait for a slow reader in a store of 80 MiB: Ray writes them to disk."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SMALL_STORE))
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path}
    environment.pop("RAY_ADDRESS", None)
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=180, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == str([[float(n)] * 2 for n in range(2, 8)])
