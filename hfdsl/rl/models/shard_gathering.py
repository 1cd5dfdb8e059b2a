"""Full copies of tensors that FSDP2 shards, gathered in buckets: one collective for each bucket.

A worked example. Two ranks hold the rows of a weight of 3 rows and of one of 2, as ``torch.chunk`` cuts them; what a
rank sends is as long on every rank::

    rank    sends                          full copies
    0       w0 rows 0 1    w1 row 0        w0: rows 0 1 of rank 0, row 2 of rank 1, without the padding
    1       w0 row 2, pad  w1 row 1        w1: row 0 of rank 0, row 1 of rank 1

The next bucket travels while the caller reads the last one, so at most two exist at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from hfdsl.plan.buckets import filled
from hfdsl.rl.workers.layouts import GATHERED_BUCKETS
from hfdsl.runtime.copying import copy_all
from hfdsl.runtime.rank.process_groups import all_gather_single

FULL_BYTES: Final = 64 * 2**20
"""The most bytes of the tensors in a bucket, but for a single one that is larger."""


def full_values(values: Iterable[torch.Tensor], most: int = FULL_BYTES) -> Iterator[torch.Tensor]:
    """Full copies in order, those of shards gathered from all ranks; a collective of these.

    >>> [value.tolist() for value in full_values([torch.tensor([1.0]), torch.tensor([[2]])])]
    [[1.0], [[2]]]
    """
    for mesh_and_dtype, alike in groupby(values, _sharding):
        if mesh_and_dtype is None:
            for value in alike:
                yield (value.full_tensor() if isinstance(value, DTensor) else value.detach()).clone()
        else:
            yield from _gathered((value for value in alike if isinstance(value, DTensor)), mesh_and_dtype[0], most)


def _sharding(value: torch.Tensor) -> tuple[DeviceMesh, torch.dtype] | None:
    """The mesh that shards the rows of a tensor, and its dtype; None where it is whole, or placed in another way."""
    if isinstance(value, DTensor) and value.placements == (Shard(0),):
        return value.device_mesh, value.dtype
    return None


def _gathered(shards: Iterable[DTensor], mesh: DeviceMesh, most: int) -> Iterator[torch.Tensor]:
    waiting: deque[_Bucket] = deque()
    for bucket, _ in filled(((shard, shard.numel() * shard.element_size()) for shard in shards), most):
        waiting.append(_Bucket(bucket, mesh))
        if len(waiting) == GATHERED_BUCKETS:
            yield from waiting.popleft().arrived()
    while waiting:
        yield from waiting.popleft().arrived()


class _Bucket:
    """Shards that are on their way to all ranks."""

    def __init__(self, shards: Sequence[DTensor], mesh: DeviceMesh) -> None:
        self._shapes, self._ranks = [shard.shape for shard in shards], mesh.size()
        self._sizes = [-(-shape[0] // self._ranks) * shape[1:].numel() for shape in self._shapes]
        parts = [shard.to_local().detach() for shard in shards]
        self._sent = parts[0].new_empty(sum(self._sizes))
        places = [
            place[: part.numel()].view(part.shape)
            for place, part in zip(self._sent.split(self._sizes), parts, strict=True)
        ]
        copy_all(places, parts)
        self._arrived = self._sent.new_empty((self._ranks, sum(self._sizes)))
        gather = all_gather_single(self._arrived.view(-1), self._sent, mesh.get_group(), async_op=True)
        self._work: Any = gather

    def arrived(self) -> Iterator[torch.Tensor]:
        """The full tensors, each in memory of its own."""
        self._work.wait()
        for shape, rows in zip(self._shapes, self._arrived.split(self._sizes, 1), strict=True):
            padded = rows.contiguous().view(-1, *shape[1:])
            yield padded if len(padded) == shape[0] else padded[: shape[0]].clone()
