"""Broadcasts of weights, over gloo between threads."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from hfdsl.runtime.transports.broadcast import broadcast

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int16, torch.bool)


def each(size: int, act: Any) -> list[Any]:
    """What every rank of a group gets, each in a thread."""
    store, results, failed, groups = HashStore(), [None] * size, list[BaseException](), list[Any]()

    def rank(number: int) -> None:
        try:
            group = dist.ProcessGroupGloo(store, number, size, timedelta(seconds=60))
            groups.append(group)  # it lives until all are done: a peer may still connect to it
            results[number] = act(group, number)
        except BaseException as error:  # noqa: BLE001  # raised in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return results


@settings(max_examples=15)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4), st.booleans()), max_size=40),
    bucket=st.sampled_from([1, 64, 200, 10_000]),
    root=st.integers(0, 2),
)
def test_every_rank_gets_what_the_root_has(sizes: list[tuple[int, int, bool]], bucket: int, root: int) -> None:
    def state(rank: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(rank)
        tensors = []
        for rows, kind, strided in sizes:
            tensor = torch.randint(-9, 9, (rows, 2), generator=generator).to(DTYPES[kind])
            tensors.append(tensor.t() if strided else tensor)
        return tensors

    def act(group: Any, rank: int) -> list[torch.Tensor]:
        tensors = state(rank)
        before = [tensor.data_ptr() for tensor in tensors]
        broadcast(tensors, group, root, bucket)
        assert [tensor.data_ptr() for tensor in tensors] == before
        return tensors

    for received in each(3, act):
        for tensor, want in zip(received, state(root), strict=True):
            assert torch.equal(tensor, want)


def test_parameters_that_want_gradients_are_written_in_place() -> None:
    def act(group: Any, rank: int) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.full((3,), float(rank)))
        broadcast([weight], group, 1)
        assert weight.requires_grad
        return weight.detach()

    assert [weight.tolist() for weight in each(2, act)] == [[1.0] * 3] * 2


@pytest.mark.parametrize("bucket", [1, 100])
def test_no_tensors_are_no_broadcast(bucket: int) -> None:
    assert each(2, lambda group, rank: broadcast([], group, bucket_bytes=bucket)) == [None, None]
