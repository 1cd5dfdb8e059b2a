"""Plans on pools with GPUs: what goes from process to process directly is what goes through the object store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

import hfdsl as hf
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.edges import direct_pairs
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.payloads import planned_topology
from hfdsl.plan.plan import Plan, Transport
from hfdsl.plan.queues import decides
from hfdsl.plan.routes import compute_routes
from hfdsl.plan.rows import row_table
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.queues.stage_plans import queue_stages
from hfdsl.runtime.running import Running
from hfdsl.runtime.transports import tensor_sharing
from tests.runtime import moving_programs as p
from tests.runtime.renamed import renamed
from tests.runtime.stage_programs import Actor, B, Engine, Judge, deciding


def deployment(*, use_gpu: bool, makers: int = 1, readers: int = 1) -> hf.Deployment:
    return hf.Deployment(
        maker=hf.place(p.Maker, pool=hf.ResourcePool([makers], use_gpu=use_gpu)),
        reader=hf.place(p.Reader, pool=hf.ResourcePool([readers], use_gpu=use_gpu)),
    )


def compiled(flow: Any, deployment: hf.Deployment, optimize: Optimize | None = None) -> CompiledPlan:
    plan: CompiledPlan = flow.compile(deployment, dims={p.B: 4, p.R: 2}, optimize=optimize)
    return plan


def inputs(first: int = 0) -> p.Inputs:
    return p.Inputs(x=torch.arange(first, first + 8, dtype=torch.float32).view(4, 2))


def same(value: Any, other: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(same, value, other))
    for name, mine in value.__hf_columns__.items():
        theirs = other.__hf_columns__[name]
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), name
        elif hasattr(mine, "rows"):
            assert all(map(torch.equal, mine.rows, theirs.rows)), name
        else:
            assert mine == theirs, name
    return True


def shipments(running: Running) -> int:
    """How many payloads went directly in the routes of the steps so far."""
    routings = running._runner.routings.cache.values()
    tasks = (task for routing in routings for by_rank in routing.routes.tasks.values() for task in by_rank.values())
    return sum(payload.direct for task in tasks for payload in task.sends)


def everybody() -> hf.Deployment:
    """One rank, a pair, and another pair whose first rank is on the device of the one."""
    pair, others = hf.ResourcePool([2]), hf.ResourcePool([2])
    first, second = pair.split([1, 1])
    return hf.Deployment(
        maker=hf.place(p.Maker, pool=first),
        makers=hf.place(p.Maker, pool=pair),
        bare=hf.place(p.Maker, False, pool=pair),
        stored=hf.place(p.Maker, pool=first, transport="object store"),
        reader=hf.place(p.Reader, pool=others),
        single=hf.place(p.Reader, pool=second),
        trainer=hf.place(p.Trainer, pool=first),
        other_trainer=hf.place(p.Trainer, pool=first),
        engine=hf.place(p.Engine, pool=others),
        judge=hf.place(p.Engine, pool=second),
        near=hf.place(p.Engine, pool=pair),
    )


@pytest.fixture(scope="module")
def launched(ray_cluster: Any) -> Iterator[Running]:
    """A launch for all tests in which nothing goes wrong: processes take long to start."""
    with compiled(p.joining, everybody()).launch("ray", deadline=120) as running:
        yield running


def also(launched: Running, flow: Any, name: str, optimize: Optimize | None = None, **roles: str) -> Running:
    return launched.also(compiled(renamed(flow, name, **roles), launched.plan.deployment, optimize))


@pytest.mark.parametrize("flow", [p.split, p.kept])
@pytest.mark.parametrize("makers", [1, 2])
def test_direct_payloads_equal_those_through_the_store(launched: Running, flow: Any, makers: int) -> None:
    with compiled(flow, deployment(use_gpu=False, makers=makers, readers=2)).launch() as local:
        expected = [local.step(inputs(first)) for first in (0, 5)]
    maker = "maker" if makers == 1 else "makers"
    running = also(launched, flow, f"{flow.__name__}_of_{maker}", maker=maker)
    assert all(map(same, [running.step(inputs(first)) for first in (0, 5)], expected))
    assert shipments(running)


def test_absent_columns_arrive_as_such(launched: Running) -> None:
    local = hf.Deployment(
        maker=hf.place(p.Maker, False, pool=hf.ResourcePool([2], use_gpu=False)),
        reader=hf.place(p.Reader, pool=hf.ResourcePool([1], use_gpu=False)),
    )
    with compiled(p.split, local).launch() as running:
        expected = running.step(inputs())
    running = also(launched, p.split, "absent", maker="bare", reader="single")
    assert same(running.step(inputs()), expected)
    assert shipments(running)


@pytest.mark.parametrize("maker", ["stored", "maker"])
def test_the_object_store_can_be_asked_for(launched: Running, maker: str) -> None:
    optimize = None if maker == "stored" else Optimize(direct=False)
    running = also(launched, p.split, f"through_the_store_{maker}", optimize, maker=maker)
    assert {edge.transport for edge in running.plan.edges} == {"from caller", "object store"}
    with compiled(p.split, deployment(use_gpu=False, readers=2)).launch() as local:
        assert same(running.step(inputs()), local.step(inputs()))
    assert not shipments(running)


def test_another_plan_on_the_same_processes_goes_directly_too(launched: Running) -> None:
    another = also(launched, p.kept, "kept_besides")
    with (
        compiled(p.joining, everybody()).launch() as first,
        first.also(compiled(p.kept, first.plan.deployment)) as second,
    ):
        for number in (0, 3):
            assert same(launched.step(inputs(number)), first.step(inputs(number)))
            assert same(another.step(inputs(number)), second.step(inputs(number)))
    assert shipments(launched)
    assert shipments(another)


def spread(running: Running) -> set[int]:
    """To how many processes a payload is broadcast."""
    routings = running._runner.routings.cache.values()
    tasks = (task for routing in routings for by_rank in routing.routes.tasks.values() for task in by_rank.values())
    return {len(payload.broadcast) - 1 for task in tasks for payload in task.sends if payload.broadcast}


@pytest.mark.parametrize(("trainer", "judge", "count"), [("trainer", "judge", {3}), ("other_trainer", "near", set())])
def test_weights_are_broadcast_to_all_who_load_them(
    launched: Running, trainer: str, judge: str, count: set[int]
) -> None:
    """To engines of two ranks, and a judge elsewhere or on the trainer's device: NCCL joins no two processes of one."""
    running = also(launched, p.sync, f"sync_of_{trainer}", trainer=trainer, judge=judge)
    for step in range(4):
        *seen, _ = running.step(inputs())
        # Six numbers from 0 to 5, five ones and the first two numbers again, twice; every step adds 1 to each.
        weights = 2 * (15 + 5 + 3) + step * (1000 + 2 * 13)
        assert [batch.total.tensor.tolist() for batch in seen] == [[weights] * 4] * 2
    assert spread(running) == count
    assert shipments(running)


def keeps(running: Running) -> set[bool]:
    """Whether its processes keep mapped what they read."""
    backend: Any = running._processes.backend
    answers = [
        actor.__ray_call__.remote(lambda _: tensor_sharing.mappings.keep)
        for actor in backend._direct_groups._links.actors
    ]
    return set(ray.get(answers))


def test_mappings_are_kept_unless_a_plan_of_the_run_gives_memory_back(launched: Running) -> None:
    """The last here: from then on nothing is kept."""
    places, off = deployment(use_gpu=True), Optimize(mappings=False)
    assert "cuda ipc readers keep GPU memory mapped between transfers" in str(compiled(p.split, places))
    assert "cuda ipc readers" not in str(compiled(p.split, places, off))
    assert keeps(launched) == {True}
    also(launched, p.writing, "writing")
    assert keeps(launched) == {True}
    unmapped = also(launched, p.kept, "unmapped", off)
    assert keeps(launched) == {False}
    also(launched, p.overwriting, "overwriting")
    assert keeps(launched) == {False}
    with compiled(p.kept, deployment(use_gpu=False, readers=2)).launch() as local:
        assert same(unmapped.step(inputs()), local.step(inputs()))


def ways_out(plan: Plan) -> dict[str, bool]:
    """The calls whose rows leave their processes before results do, and whether they leave directly."""
    tasks = compute_routes(plan, row_table(plan, plan.dims), planned_topology(plan)).tasks.values()
    sent = [payload for by_rank in tasks for task in by_rank.values() for payload in task.sends]
    return {plan.node(part.node).label: payload.direct for payload in sent for part in payload.slices}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("late", ["wait", "drop"])
def test_a_plan_shows_how_rows_of_a_queue_travel(late: Late, together: bool) -> None:
    front, behind = hf.ResourcePool([1], name="front"), hf.ResourcePool([1], name="behind")
    deployment = hf.Deployment(
        engine=hf.place(Engine, pool=front),
        judge=hf.place(Judge, pool=front),
        actor=hf.place(Actor, pool=front if together else behind),
    )
    plan = deciding.given(late=late).compile(deployment, dims={B: 4})
    labels = {node.id: node.label for node in plan.graph.nodes}
    shown = {labels[edge.source]: edge for edge in plan.edges if labels[edge.target] == "actor.update"}
    run = ways_out(queue_stages(plan).plans[0] if decides(plan) else plan)
    for call in ("engine.generate", "judge.score"):
        assert (shown[call].transport == "cuda ipc") == run.get(call, False)
        assert (shown[call].transport == "in process") == (call not in run)
    assert shown["judge.score"].moved == (16 if "judge.score" in run else 0)  # four rows of four bytes
    expected: dict[tuple[Late, bool], Transport] = {
        ("wait", False): "cuda ipc",
        ("wait", True): "in process",
        ("drop", False): "object store",
        ("drop", True): "shared memory",
    }
    assert shown["engine.generate"].transport == expected[late, together]
    readers = {reader for _, (reader, _) in direct_pairs(plan)}
    assert ("actor" in readers) == (expected[late, together] == "cuda ipc"), "others need no link"
