"""Slices of many tensors, joined from all ranks of a group in buckets: one operation for each bucket.

A worked example. Two ranks have halves of three weights, of 20, 10 and 40 MiB, and a bucket has at most 32 MiB of one
rank. Rows of ``w0`` and ``w2`` are sliced, and columns of ``w1``. So there are two operations in place of three::

    bucket    own bytes          arrives where it stays    arrives in a buffer
    0         w0 w1     30 MiB   both halves of w0         both halves of w1, which are copied to their columns
    1         w2        40 MiB   both halves of w2

The second bucket travels while the first one's columns are copied, so at most two exist at a time. A rank sends its
slices from where they are.

A bucket is laid out once. It keeps every view that it reads and writes, but no memory: the tensors behind the views
have empty storages between two uses. Nothing kept refers to the memory of the slices themselves, so they may move
between two uses, as in an offload.

Why this is right: all ranks have slices of the same shapes and dtypes in the same order, so their buckets are the same.
Slices of rows are contiguous in the joined tensor, one after the other in the order of the ranks, as an all-gather
leaves them; slices of columns are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

import torch

from hfdsl.plan.buckets import filled
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.workers.layouts import GATHERED_BYTES
from hfdsl.runtime.copying import EmptyTensors, copy_all

K = TypeVar("K")


class JoinedBucket:
    """Slices of one dtype that travel together, and the tensors ``joined`` of them, which have memory until ``free``.

    ``slices`` has for each a tensor of its shape, and the dim along which ``fold`` neighboring ranks are joined.
    ``own`` are the slices of this rank within ``joined``.
    """

    def __init__(self, slices: Sequence[tuple[torch.Tensor, int]], ranks: AxisGroup, fold: int) -> None:
        self._ranks, place = ranks, ranks.rank % fold
        self.joined = [_stacked(each, dim, fold) for each, dim in slices]
        self.own = [whole.chunk(fold, dim)[place] for whole, (_, dim) in zip(self.joined, slices, strict=True)]
        # One tensor with other strides than the rest would make torch copy all of them one by one.
        self._alike = [[at for at, (_, dim) in enumerate(slices) if (dim == 0) is outer] for outer in (True, False)]
        self._arriving, self._copies, buffers = list[torch.Tensor](), list[_Copy](), list[torch.Tensor]()
        for whole, (each, dim) in zip(self.joined, slices, strict=True):
            if dim == 0 and fold == ranks.size:
                self._arriving.append(whole)
                continue
            buffer = _stacked(each, 0, ranks.size)
            self._arriving.append(buffer)
            buffers.append(buffer)
            self._copies.append(_Copy(buffer.chunk(ranks.size)[ranks.rank - place :][:fold], dim, whole))
        self._memory, self._buffers = EmptyTensors(self.joined), EmptyTensors(buffers)

    def begin(self, slices: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Send these slices; the returned function waits for the slices of all ranks and joins them."""
        self._memory.allocate()
        self._buffers.allocate()
        sent = [each.contiguous() for each in slices]
        return partial(self._join, self._ranks.begin_gathers_into(self._arriving, sent))

    def _join(self, arrived: Callable[[], None]) -> None:
        arrived()
        for copy in self._copies:
            torch.cat(copy.parts, copy.dim, out=copy.joined)
        self._buffers.free()

    def own_copies(self) -> list[torch.Tensor]:
        """Copies of ``own``, each in memory of its own."""
        copies = [torch.empty_like(own) for own in self.own]  # contiguous, also of those that are strided
        for places in self._alike:
            copy_all([copies[at] for at in places], [self.own[at] for at in places])
        return copies

    def free(self) -> None:
        """Free the memory of ``joined``."""
        self._memory.free()


@dataclass(frozen=True, slots=True)
class _Copy:
    """Slices that a copy joins along a dim."""

    parts: tuple[torch.Tensor, ...]
    dim: int
    joined: torch.Tensor


def _stacked(like: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """An empty tensor with room for ``count`` slices, one after another along a dim."""
    return like.new_empty([count * size if at == dim else size for at, size in enumerate(like.shape)])


def joined_buckets(
    slices: Iterable[tuple[K, torch.Tensor, int]], ranks: AxisGroup, fold: int, most: int = GATHERED_BYTES
) -> Iterator[tuple[list[K], JoinedBucket]]:
    """Buckets of consecutive slices of one dtype, with at most ``most`` bytes; each slice comes with a key and its dim.

    >>> from hfdsl.protocols.collectives import SoleRank
    >>> slices = [("a", torch.ones(2), 0), ("b", torch.ones(1, 1), 1), ("c", torch.ones(1).long(), 0)]
    >>> [(keys, [whole.shape for whole in bucket.joined])
    ...  for keys, bucket in joined_buckets(slices, SoleRank(), fold=1, most=16)]
    [(['a', 'b'], [torch.Size([2]), torch.Size([1, 1])]), (['c'], [torch.Size([1])])]
    """
    for _, alike in groupby(slices, lambda keyed: keyed[1].dtype):
        for bucket, _ in filled(((keyed, keyed[1].nbytes) for keyed in alike), most):
            yield [key for key, _, _ in bucket], JoinedBucket([(each, dim) for _, each, dim in bucket], ranks, fold)
