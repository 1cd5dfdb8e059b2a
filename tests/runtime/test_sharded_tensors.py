"""DTensors in syncs: a rank sends what it holds, by its layout, and nothing as a whole that is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import hfdsl as hf
from hfdsl.errors import SyncError
from hfdsl.plan.optimize import Optimize
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, Shards, Slices
from hfdsl.runtime.weights.local_weights import LocalWeights
from tests.runtime import resharding_programs as p
from tests.runtime import sharded_programs as s
from tests.runtime.test_exchange import launched
from tests.runtime.test_verification import SYNC


@pytest.fixture(autouse=True)
def device_mesh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two ranks, of which this process is one, that never communicate; on Ray, ranks have a group of their own."""
    if "ray_cluster" in request.fixturenames:
        yield
        return
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("engine", "direct"), [(p.Engine, True), (p.Engine, False), (p.Holding, True), (s.ShardedMemory, True)]
)
def test_a_rank_sends_its_shards(engine: type[p.Engine], direct: bool) -> None:
    with launched(engine, direct=direct, trainer=s.Sharded) as running:
        assert all(running.step())
        with running.verifying():
            assert all(running.step())
        assert running.verify("policy").compared == (SYNC,)


def whole(trainer: type[s.Whole]) -> Any:
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(trainer, Replicas(), 1, pool=pools[0]), engine=hf.place(p.Engine, Replicas(), pool=pools[1])
    )
    return s.whole_sync.compile(deployment, optimize=Optimize()).launch("local")


def test_a_part_is_no_whole_weight() -> None:
    """No rank may gather it alone, so the role has to."""
    with whole(s.Whole) as running, pytest.raises(SyncError) as raised:
        running.step()
    assert (raised.value.code, raised.value.parameter, raised.value.ranks) == ("HF773", "embedding", (0,))
    assert raised.value.message == (
        "'actor.weights' returned a part of 'embedding', a DTensor that is sent whole (declare a layout=, or return "
        "its full_tensor(), which all ranks call), on rank 0"
    )


def test_a_replicated_tensor_is_whole() -> None:
    with whole(s.WholeReplicas) as running:
        assert not any(running.step())  # it holds weights of the next step
        engine = running._processes.backend.of_workers("engine", lambda worker: worker.table)
    for table in engine:
        assert {name: type(weight).__name__ for name, weight in table.items()} == dict.fromkeys(table, "Tensor")
        assert all(table[each.name].equal(p.whole(each, 1)) for each in p.PARAMETERS)


def test_partial_values_are_refused() -> None:
    with launched(p.Engine, trainer=s.PartialSums) as running, pytest.raises(SyncError) as raised:
        running.step()
    assert raised.value.code == "HF773"
    assert "returned 'embedding', a DTensor of partial values: redistribute it, on rank 0" in raised.value.message


class Elsewhere(s.Sharded):
    """Its DTensors are placed in the other shard."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=p.declared)
    def weights(self) -> dict[str, Any]:
        mesh = s.mesh_of(1 - self.mesh.coordinates(self.rank).dp)
        return {name: s.distributed(part, mesh, self.how) for name, part in self.table.items()}

    @staticmethod
    def state_parameters(layout: Any, step: int = 0) -> dict[str, list[Parameter]]:
        return {"policy": p.PARAMETERS}


def test_a_tensor_that_is_placed_elsewhere_than_its_layout_says() -> None:
    """The shapes and the digests of both sides would be right, and the weights wrong."""
    with launched(p.Holding, trainer=Elsewhere) as running, pytest.raises(SyncError) as raised:
        running.step()
    assert (raised.value.code, raised.value.parameter, raised.value.ranks) == ("HF773", "norm", (0,))
    assert raised.value.message == (
        "'actor.weights' returned 'norm'[2:4], as its DTensor is placed, but its layout says [0:2], on rank 0"
    )


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        (Slices(0).then(Shards("dp")), None),
        (
            Shards("dp").then(Slices(0)),
            r"'0.weight'\[4:6, 0:3\], as its DTensor is placed, but .* \[2:4, 0:3\], on rank 1",
        ),
        (Slices(0, blocks=(4, 4)), None),  # an order of rows of which a DTensor knows nothing
    ],
)
def test_slices_come_before_shards(layout: Layout, problem: str | None) -> None:
    """As where a model is sliced over ``tp``, and then sharded by FSDP2."""
    dist.destroy_process_group()
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    devices = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(nn.Sequential(nn.Linear(3, 8, bias=False)), devices["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=devices["dp"])
    weights = model.state_dict()
    parameter, mesh = Parameter("0.weight", (8, 3), "float32"), hf.Mesh(dp=2, tp=2)
    if layout == Slices(0, blocks=(4, 4)):
        weights, mesh = {"0.weight": s.distributed(torch.zeros(4, 3), s.mesh_of(0), "shard")}, hf.Mesh(tp=2)
    held = LocalWeights(layout, mesh, 1, weights, ("HF773", "actor.weights", "returned"), {})
    box = layout.boxes(parameter, mesh, 1)[0]
    if problem is None:
        assert held.part(parameter, box).shape == (2, 3)
    else:
        with pytest.raises(SyncError, match=problem):
            held.part(parameter, box)


@pytest.mark.nightly
@pytest.mark.parametrize("direct", [True, False])
def test_shards_of_fsdp_arrive(ray_cluster: Any, direct: bool) -> None:
    pools = [hf.ResourcePool([count], use_gpu=False) for count in (3, 1)]
    deployment = hf.Deployment(
        actor=hf.place(s.Fsdp, pool=pools[0], mesh=hf.Mesh(dp=3)), engine=hf.place(s.Copy, pool=pools[1])
    )
    with s.fsdp.compile(deployment, optimize=Optimize(direct=direct)).launch("ray") as running:
        assert all(running.step())
        with running.verifying():
            assert all(running.step())
