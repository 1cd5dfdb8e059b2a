"""Full copies of what FSDP2 shards, gathered in buckets, against copies of torch's own, between two processes."""

from __future__ import annotations

import multiprocessing
import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from hfdsl.rl.models.shard_gathering import full_values

SHAPES = [(4, 3), (5,), (1, 2), (3, 2, 2), (7, 1), (2,), (6, 4)]
"""Rows that two ranks share evenly, and that they do not; of the third, a rank has none."""


def gathered(rank: int, port: int, wrong: Any) -> None:
    """One of two ranks: counts the tensors that are not as torch gathers them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh, draw = init_device_mesh("cpu", (2,)), torch.Generator().manual_seed(0)
    values: list[torch.Tensor] = []
    for number, shape in enumerate(SHAPES * 2):
        full = torch.randn(shape, generator=draw).to(torch.bfloat16 if number % 5 == 4 else torch.float32)
        placement = Replicate() if number == 8 else Shard(1) if number == 6 else Shard(0)
        values.append(full if number == 3 else distribute_tensor(full, mesh, [placement]))
    expected = [value if number == 3 else value.full_tensor().clone() for number, value in enumerate(values)]  # type: ignore[attr-defined]
    for most in (0, 64, 2**20):
        full_copies = list(full_values(values, most))
        wrong.value += len(full_copies) != len(expected)
        for copy, value in zip(full_copies, expected, strict=True):
            wrong.value += copy.dtype != value.dtype or not torch.equal(copy, value) or not copy.is_contiguous()
            copy.zero_()  # it is nobody else's
        wrong.value += any(not bool(value.any()) for value in expected)
    dist.destroy_process_group()


@pytest.mark.nightly
def test_buckets_have_what_torch_gathers_tensor_by_tensor() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    wrong = [context.Value("i", 0) for _ in range(2)]
    ranks = [context.Process(target=gathered, args=(rank, port, wrong[rank])) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert [count.value for count in wrong] == [0, 0]
