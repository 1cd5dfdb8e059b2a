"""The same programs on GPU pools."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, merge_resource_pool
from tests.gpu import gpu_programs as p

pytestmark = pytest.mark.gpu
GPUS = torch.cuda.device_count()


def inputs(rows: int = 8) -> p.Inputs:
    return p.Inputs(x=torch.arange(rows * 4, dtype=torch.float32).view(rows, 4) / 10)


def deployment(ranks: int, *, use_gpu: bool, colocate: bool = True) -> hf.Deployment:
    pool = hf.ResourcePool([ranks], use_gpu=use_gpu)
    return hf.Deployment(model=hf.place(p.Model, 4, pool=pool), scale=hf.place(p.Scale, pool=pool, colocate=colocate))


@pytest.mark.parametrize("colocate", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plan_on_gpus_gives_what_it_gives_here(gpu_cluster: Any, ranks: int, colocate: bool) -> None:
    if ranks > GPUS:
        pytest.skip("too few GPUs")
    dims = {p.B: 8, p.R: 4}
    with p.train.compile(deployment(ranks, use_gpu=False), dims).launch("local") as running:
        expected = [running.step(inputs()) for _ in range(2)]
    with p.train.compile(deployment(ranks, use_gpu=True, colocate=colocate), dims).launch(
        "ray", timeout=120
    ) as running:
        steps = [running.step(inputs()) for _ in range(2)]
    for (outputs, metrics), (want, wanted) in zip(steps, expected, strict=True):
        torch.testing.assert_close(outputs.y.tensor.cpu(), want.y.tensor.cpu())
        assert metrics.weight.value == pytest.approx(wanted.weight.value, rel=1e-5)
        assert metrics.device.value == 1  # the column came back onto the GPU, whichever process made it


@pytest.mark.parametrize("with_bonus", [True, False])
@pytest.mark.parametrize("colocate", [True, False])
def test_filtered_ragged_and_optional_columns_on_gpus(gpu_cluster: Any, colocate: bool, with_bonus: bool) -> None:
    def placed(use_gpu: bool) -> hf.Deployment:
        pool = hf.ResourcePool([GPUS], use_gpu=use_gpu)
        writer = hf.place(p.Writer, with_bonus, pool=pool)
        return hf.Deployment(writer=writer, reader=hf.place(p.Reader, pool=pool, colocate=colocate))

    inputs, dims = p.Inputs(x=torch.arange(8.0)[:, None].expand(8, 4).contiguous()), {p.B: 8, p.R: 4}
    with p.read_kept.compile(placed(False), dims).launch("local") as running:
        expected = running.step(inputs).y.tensor.cpu()
    with p.read_kept.compile(placed(True), dims).launch("ray", timeout=120) as running:
        y = running.step(inputs).y.tensor.cpu()
    torch.testing.assert_close(y[:, :2], expected[:, :2])
    assert y[:, 0].tolist() == [1.0, 3.0, 1.0, 3.0]
    assert y[:, 2].tolist() == [1.0] * 4  # the rows came back onto the GPU


def test_the_imperative_layer_on_gpus(gpu_cluster: Any) -> None:
    with RayResourcePool([GPUS]) as pool, RayWorkerGroup(pool, RayClassWithInitArgs(p.Accumulator, x=2)) as group:
        assert group.execute_all_sync("add", x=[1] * GPUS) == [float(rank + 3) for rank in range(GPUS)]
        assert len(set(group.uuid())) == GPUS
        assert group.reduced() == [float(sum(rank + 3 for rank in range(GPUS)))] * GPUS


def test_groups_on_halves_and_on_the_whole_share_devices(gpu_cluster: Any) -> None:
    if GPUS < 2:
        pytest.skip("too few GPUs")
    halves = [RayResourcePool([1]), RayResourcePool([1])]
    both = merge_resource_pool(*halves)
    accumulator = RayClassWithInitArgs(p.Accumulator, x=0)
    with (
        RayWorkerGroup(both, accumulator) as both_groups,
        RayWorkerGroup(halves[0], accumulator) as a,
        RayWorkerGroup(halves[1], accumulator) as b,
    ):
        assert [*a.uuid(), *b.uuid()] == list(both_groups.uuid())
    for pool in halves:
        pool.shutdown()


def test_a_pool_of_too_many_gpus_fails_at_once(gpu_cluster: Any) -> None:
    with pytest.raises(hf.ResourceError, match="HF502"):
        RayResourcePool([GPUS + 1]).place()
