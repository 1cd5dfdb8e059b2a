"""Plans whose values of every kind go from GPU to GPU, and between processes of one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import WiringError
from tests.runtime import moving_programs as p
from tests.runtime.test_direct_plans import compiled, inputs, same, shipments, spread

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def places(gpus: int) -> hf.Deployment:
    pool = hf.ResourcePool([1])
    if torch.cuda.device_count() < gpus:
        pytest.skip("too few GPUs")
    other = hf.place(p.Reader, pool=hf.ResourcePool([1]) if gpus == 2 else pool, colocate=False)
    return hf.Deployment(maker=hf.place(p.Maker, pool=pool, transport="cuda ipc"), reader=other)


@pytest.mark.parametrize("flow", [p.split, p.kept])
@pytest.mark.parametrize("gpus", [1, 2])
def test_payloads_arrive_unchanged(gpus: int, flow: Any) -> None:
    plan = compiled(flow, places(gpus))
    assert "cuda ipc" in {edge.transport for edge in plan.edges}
    with plan.launch("ray") as running, plan.launch() as local:
        for first in (0, 5):
            assert same(running.step(inputs(first)), local.step(inputs(first)))
        assert shipments(running)


@pytest.mark.parametrize("gpus", [1, 2])
def test_writing_into_what_arrived_is_refused(gpus: int) -> None:
    with compiled(p.writing, places(gpus)).launch("ray") as running, pytest.raises(WiringError, match="HF703"):
        running.step(inputs())


@pytest.mark.parametrize("gpus", [1, 2])
def test_writing_into_what_is_under_way_is_refused(gpus: int) -> None:
    with compiled(p.overwriting, places(gpus)).launch("ray") as running, pytest.raises(WiringError, match="HF703"):
        running.step(inputs())


def test_nothing_stays_on_a_gpu_after_its_last_reader() -> None:
    pool = hf.ResourcePool([1])
    deployment = hf.Deployment(
        maker=hf.place(p.Filler, pool=pool), reader=hf.place(p.Filler, pool=pool, colocate=False)
    )
    with compiled(p.filling, deployment).launch("ray") as running:
        held = [max(report.held.value for report in running.step(inputs())) for _ in range(12)]
    assert max(held) <= 4 * inputs().x.tensor.shape[0] * 2**20 * 4, "of twelve steps, at most four values"


def test_weights_are_broadcast_to_another_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("too few GPUs")
    trainer, engine = (hf.place(role, pool=hf.ResourcePool([1])) for role in (p.Trainer, p.Engine))
    with compiled(p.sync_one, hf.Deployment(trainer=trainer, engine=engine)).launch("ray", deadline=120) as running:
        for step in range(4):
            seen, _ = running.step(inputs())
            assert seen.total.tensor.tolist() == [2 * (15 + 5 + 3) + step * (1000 + 2 * 13)] * 4
        assert spread(running) == {1}
