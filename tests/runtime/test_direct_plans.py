"""Plans on pools with GPUs: what goes from process to process directly is what goes through the object store."""

from __future__ import annotations

from typing import Any

import pytest
import ray
import torch

import hfdsl as hf
from hfdsl.errors import RoleError, WiringError
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.plan import Plan
from hfdsl.runtime import lending
from hfdsl.runtime.running import Running
from tests.runtime import moving_programs as p


def deployment(*, use_gpu: bool, makers: int = 1, readers: int = 2, **options: Any) -> hf.Deployment:
    return hf.Deployment(
        maker=hf.place(p.Maker, pool=hf.ResourcePool([makers], use_gpu=use_gpu), **options),
        reader=hf.place(p.Reader, pool=hf.ResourcePool([readers], use_gpu=use_gpu)),
    )


def compiled(flow: Any, deployment: hf.Deployment, optimize: Optimize | None = None) -> Plan:
    plan: Plan = flow.compile(deployment, dims={p.B: 4, p.R: 2}, optimize=optimize)
    return plan


def given(first: int = 0) -> p.Given:
    return p.Given(x=torch.arange(first, first + 8, dtype=torch.float32).view(4, 2))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(map(same, one, other))
    for name, mine in one.__hf_columns__.items():
        theirs = other.__hf_columns__[name]
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), name
        elif hasattr(mine, "rows"):
            assert all(map(torch.equal, mine.rows, theirs.rows)), name
        else:
            assert mine == theirs, name
    return True


def shipments(running: Running) -> int:
    """How many parcels went directly in the routes of the steps so far."""
    routings = running._routings.values()
    tasks = (task for one in routings for by_rank in one.routes.tasks.values() for task in by_rank.values())
    return sum(parcel.direct for task in tasks for parcel in task.gives)


@pytest.mark.parametrize("flow", [p.split, p.kept])
@pytest.mark.parametrize("makers", [1, 2])
def test_what_arrives_is_what_goes_through_the_store(ray_cluster: Any, flow: Any, makers: int) -> None:
    with compiled(flow, deployment(use_gpu=False, makers=makers)).launch() as running:
        expected = [running.step(given(first)) for first in (0, 5)]
    with compiled(flow, deployment(use_gpu=True, makers=makers)).launch("ray") as running:
        found = [running.step(given(first)) for first in (0, 5)]
        assert shipments(running)
    assert all(map(same, found, expected))


def test_absent_columns_arrive_as_such(ray_cluster: Any) -> None:
    def placed(use_gpu: bool) -> hf.Deployment:
        return hf.Deployment(
            maker=hf.place(p.Maker, False, pool=hf.ResourcePool([2], use_gpu=use_gpu)),
            reader=hf.place(p.Reader, pool=hf.ResourcePool([1], use_gpu=use_gpu)),
        )

    with compiled(p.split, placed(False)).launch() as local, compiled(p.split, placed(True)).launch("ray") as running:
        assert same(running.step(given()), local.step(given()))


@pytest.mark.parametrize("way", ["object store", None])
def test_the_object_store_can_be_asked_for(ray_cluster: Any, way: Any) -> None:
    places = deployment(use_gpu=True, transport=way)
    plan = compiled(p.split, places, None if way else Optimize(direct=False))
    assert {edge.transport for edge in plan.edges} == {"from caller", "object store"}
    with plan.launch("ray") as running, compiled(p.split, deployment(use_gpu=False)).launch() as local:
        assert same(running.step(given()), local.step(given()))
        assert not shipments(running)


def test_another_plan_on_the_same_processes_goes_directly_too(ray_cluster: Any) -> None:
    places = deployment(use_gpu=True)
    with compiled(p.split, places).launch("ray") as running, compiled(p.kept, places).launch() as local:
        also = running.also(compiled(p.kept, places))
        for first in (0, 3):
            running.step(given(first))
            assert same(also.step(given(first)), local.step(given(first)))
        assert shipments(also)


def parked() -> hf.Deployment:
    """A maker that gives memory back whenever its reader, another process of the same device, is at work."""
    pool = hf.ResourcePool([1])
    reader = hf.place(p.Reader, pool=pool, colocate=False)
    return hf.Deployment(maker=hf.place(p.Parked, pool=pool, offload=True), reader=reader)


def keeps(running: Running) -> set[bool]:
    """Whether its processes keep mapped what they read."""
    backend: Any = running._processes.backend
    asked = [actor.__ray_call__.remote(lambda _: lending._mappings.keep) for actor in backend._joined._links.actors]
    return set(ray.get(asked))


def test_mappings_are_kept_unless_a_plan_of_the_run_gives_memory_back(ray_cluster: Any) -> None:
    places, off = deployment(use_gpu=True), Optimize(mappings=False)
    assert "mapped   what is read by cuda ipc, from transfer to transfer" in str(compiled(p.split, places))
    assert "mapped" not in str(compiled(p.split, places, off))
    with compiled(p.split, places).launch("ray") as running, compiled(p.kept, places).launch() as local:
        assert keeps(running) == {True}
        running.also(compiled(p.writing, places))
        assert keeps(running) == {True}
        also = running.also(compiled(p.kept, places, off))
        assert keeps(running) == {False}
        running.also(compiled(p.overwriting, places))
        assert keeps(running) == {False}
        assert same(also.step(given()), local.step(given()))
    plan = compiled(p.split, parked())
    assert "mapped   anew for every transfer by cuda ipc, since offload gives memory back" in str(plan)
    with plan.launch("ray") as running:
        assert keeps(running) == {False}
    with compiled(p.split, parked(), Optimize(offload=False)).launch("ray") as running:
        assert keeps(running) == {True}


@pytest.mark.parametrize("launched", ["local", "ray"])
def test_writing_into_what_arrived_is_refused(ray_cluster: Any, launched: Any) -> None:
    with (
        compiled(p.writing, deployment(use_gpu=True)).launch(launched) as running,
        pytest.raises(WiringError, match=r"HF703: 'reader.write' wrote into column 'y' of its argument 'made'"),
    ):
        running.step(given())


@pytest.mark.parametrize("launched", ["local", "ray"])
def test_writing_into_what_is_under_way_is_refused(ray_cluster: Any, launched: Any) -> None:
    with (
        compiled(p.overwriting, deployment(use_gpu=True)).launch(launched) as running,
        pytest.raises(WiringError, match=r"HF703: column 'y' of its result was changed after 'maker.make'"),
    ):
        running.step(given())


def test_a_maker_that_fails_is_named(ray_cluster: Any) -> None:
    with (
        compiled(p.failing, deployment(use_gpu=True)).launch("ray") as running,
        pytest.raises(RoleError, match=r"HF806: 'maker.fail' raised on rank 0 in step 0: KeyError"),
    ):
        running.step(given())


def engines(*, colocate: bool) -> hf.Deployment:
    """A trainer, engines of two ranks, and a judge elsewhere or on the trainer's device."""
    train, serve = hf.ResourcePool([1]), hf.ResourcePool([2])
    judge = hf.place(p.Engine, pool=hf.ResourcePool([1]))
    return hf.Deployment(
        trainer=hf.place(p.Trainer, pool=train),
        engine=hf.place(p.Engine, pool=serve),
        judge=judge if colocate else hf.place(p.Engine, pool=train, colocate=False),
    )


def spread(running: Running) -> set[int]:
    """To how many processes a parcel is broadcast."""
    routings = running._routings.values()
    tasks = (task for one in routings for by_rank in one.routes.tasks.values() for task in by_rank.values())
    return {len(parcel.broadcast) - 1 for task in tasks for parcel in task.gives if parcel.broadcast}


@pytest.mark.parametrize("colocate", [True, False])
def test_weights_are_broadcast_to_all_who_load_them(ray_cluster: Any, colocate: bool) -> None:
    with compiled(p.sync, engines(colocate=colocate)).launch("ray", deadline=120) as running:
        for step in range(4):
            *seen, _ = running.step(given())
            # Six numbers from 0 to 5, five ones and the first two numbers again, twice; every step adds 1 to each.
            weights = 2 * (15 + 5 + 3) + step * (1000 + 2 * 13)
            assert [one.total.tensor.tolist() for one in seen] == [[weights] * 4] * 2
        assert spread(running) == ({3} if colocate else set()), "NCCL joins no two processes of one GPU"
        assert shipments(running)
