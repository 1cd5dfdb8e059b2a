"""Slices of many tensors, joined from all ranks of a group in buckets: one collective for each bucket.

A worked example. Two ranks have halves of three weights, of 20, 10 and 40 MiB, and a bucket has at most 32 MiB of one
rank. So there are two collectives in place of three::

    bucket    own bytes          arrives                                 copied to
    0         w0 w1     30 MiB   w0 w1 of rank 0 | w0 w1 of rank 1       both halves of w0, both halves of w1
    1         w2        40 MiB   w2 of rank 0    | w2 of rank 1          both halves of w2

The second bucket travels while the first is copied to its place, so at most two exist at a time, each with the own
bytes and those that have arrived.

A slice alone in its bucket is sent from where it is. If all ranks are joined in dim 0, it also arrives where it stays,
without a copy.

A bucket is laid out once. It keeps every view that it reads and writes, but no memory: the tensors behind the views
have empty storages between two uses. So gathering again is, for each bucket, one copy of all slices into what is sent,
a collective, and two copies from what has arrived, whatever the number of slices. Nothing kept refers to the memory of
the slices themselves, so they may move between two uses, as in an offload.

Why this is right: all ranks have slices of the same shapes and dtypes in the same order, so their buckets are the same,
and a slice begins at the same element in each rank's. A bucket has one dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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

    ``slices`` gives the shape of each by a tensor, and the dim in which ``fold`` neighbors among the ranks are joined.
    ``own`` are the slices of this rank within ``joined``.
    """

    def __init__(self, slices: Sequence[tuple[torch.Tensor, int]], ranks: AxisGroup, fold: int) -> None:
        self._ranks, place = ranks, ranks.rank % fold
        sizes, like = [each.numel() for each, _ in slices], slices[0][0]
        self._sent = None if len(slices) == 1 else like.new_empty(sum(sizes))
        self._packed = [] if self._sent is None else _views(self._sent.split(sizes), [each.shape for each, _ in slices])
        self._sending = EmptyTensors([] if self._sent is None else [self._sent])
        self.joined = [_joined(each, dim, fold) for each, dim in slices]
        self.own = [whole.chunk(fold, dim)[place] for whole, (_, dim) in zip(self.joined, slices, strict=True)]
        # Among tensors of the same strides, one with others would have all of them copied one by one.
        outer = [dim == 0 for _, dim in slices]
        self._alike = [[at for at, is_outer in enumerate(outer) if is_outer == wanted] for wanted in (True, False)]
        self._copies = _Copies(), _Copies()
        self._stays = len(slices) == 1 and outer[0] and fold == ranks.size
        """Whether what arrives is ``joined``."""

        if self._stays:
            self._gathered = self.joined[0].view(fold, -1)
        else:
            self._gathered = like.new_empty((ranks.size, sum(sizes)))
            neighbors = slice(ranks.rank - place, ranks.rank - place + fold)
            arrived = self._gathered[neighbors].split(sizes, 1)
            for whole, values, (each, dim) in zip(self.joined, arrived, slices, strict=True):
                self._copies[dim > 0].add(whole, values.view(fold, *each.shape), dim)
        self._memory, self._arriving = EmptyTensors(self.joined), EmptyTensors([self._gathered])

    def begin(self, slices: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Send these; what it returns waits for those of all ranks, and joins them."""
        self._sending.allocate()
        if self._sent is not None:
            copy_all(self._packed, [*slices])
        self._arriving.allocate()
        sent = slices[0].detach().contiguous().view(-1) if self._sent is None else self._sent
        return partial(self._join, self._ranks.begin_gather_into(self._gathered, sent))

    def _join(self, arrived: Callable[[], None]) -> None:
        arrived()
        self._sending.free()
        if not self._stays:
            self._memory.allocate()
            for copies in self._copies:
                copy_all(copies.targets, copies.sources)
            self._arriving.free()

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
class _Copies:
    """Tensors that are copied together, each to its target."""

    targets: list[torch.Tensor] = field(default_factory=list)
    sources: list[torch.Tensor] = field(default_factory=list)

    def add(self, joined: torch.Tensor, slices: torch.Tensor, dim: int) -> None:
        """Join slices [fold, ...] in a dim: one by one where each is contiguous in both, else all at once."""
        parts = joined.unflatten(dim, (len(slices), -1)).movedim(dim, 0)
        self.targets.extend([parts] if dim else parts)
        self.sources.extend([slices] if dim else slices)


def _joined(like: torch.Tensor, dim: int, fold: int) -> torch.Tensor:
    return like.new_empty([fold * size if at == dim else size for at, size in enumerate(like.shape)])


def _views(flat: Iterable[torch.Tensor], shapes: Iterable[torch.Size]) -> list[torch.Tensor]:
    return [values.view(shape) for values, shape in zip(flat, shapes, strict=True)]


def joined_buckets(
    slices: Iterable[tuple[K, torch.Tensor, int]], ranks: AxisGroup, fold: int, most: int = GATHERED_BYTES
) -> Iterator[tuple[list[K], JoinedBucket]]:
    """Buckets of slices in a row that have one dtype, up to so many bytes; each slice has a key, and its dim.

    >>> from hfdsl.protocols.collectives import SoleRank
    >>> slices = [("a", torch.ones(2), 0), ("b", torch.ones(1, 1), 1), ("c", torch.ones(1).long(), 0)]
    >>> [(keys, [whole.shape for whole in bucket.joined])
    ...  for keys, bucket in joined_buckets(slices, SoleRank(), fold=1, most=16)]
    [(['a', 'b'], [torch.Size([2]), torch.Size([1, 1])]), (['c'], [torch.Size([1])])]
    """
    for _, alike in groupby(slices, lambda keyed: keyed[1].dtype):
        for bucket, _ in filled(((keyed, keyed[1].nbytes) for keyed in alike), most):
            yield [key for key, _, _ in bucket], JoinedBucket([(each, dim) for _, each, dim in bucket], ranks, fold)
