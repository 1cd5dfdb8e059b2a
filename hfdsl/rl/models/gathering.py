"""Parts of many tensors gathered from all ranks of a group in buckets: one collective for each bucket.

A worked example. Two ranks have halves of three weights, of 20, 10 and 40 MiB, and a bucket has at most 32 MiB of one
rank. So there are two collectives in place of three::

    bucket    own bytes          arrives                                 parts of w1
    0         w0 w1     30 MiB   w0 w1 of rank 0 | w0 w1 of rank 1       two views, one in each half
    1         w2        40 MiB   w2 of rank 0    | w2 of rank 1

The second bucket travels while the caller reads the first, so at most two exist at a time, each with the own bytes and
those that have arrived.

Why this is right: all ranks have parts of the same shapes and dtypes in the same order, so their buckets are the same,
and a part begins at the same element in each rank's. A bucket has one dtype.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TypeAlias, TypeVar

import torch

from hfdsl.plan.buckets import filled
from hfdsl.rl.copying import copy_all
from hfdsl.rl.workers.layouts import GATHERED_BUCKETS, GATHERED_BYTES

K = TypeVar("K")

BeginGather: TypeAlias = Callable[[torch.Tensor], Callable[[], list[torch.Tensor]]]
"""Begins to gather a tensor [N] from all ranks; what it returns waits for them, and gives them in order."""


def gathered_in_buckets(
    parts: Iterable[tuple[K, torch.Tensor]], begin: BeginGather, most: int = GATHERED_BYTES
) -> Iterator[list[tuple[K, list[torch.Tensor]]]]:
    """For each bucket its keys, each with the parts of all ranks, views of what has arrived.

    >>> parts = [("a", torch.tensor([1.0, 2.0])), ("b", torch.tensor([[3.0]])), ("c", torch.tensor([4]))]
    >>> def begin(flat: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
    ...     return lambda: [flat, 10 * flat]
    >>> for bucket in gathered_in_buckets(parts, begin, most=16):
    ...     print([(key, [part.tolist() for part in of_ranks]) for key, of_ranks in bucket])
    [('a', [[1.0, 2.0], [10.0, 20.0]]), ('b', [[[3.0]], [[30.0]]])]
    [('c', [[4], [40]])]
    """
    waiting: deque[tuple[_Bucket[K], Callable[[], list[torch.Tensor]]]] = deque()
    for bucket in _buckets(parts, most):
        waiting.append((bucket, begin(_packed([part for _, part in bucket]))))
        if len(waiting) == GATHERED_BUCKETS:
            yield _arrived(*waiting.popleft())
    while waiting:
        yield _arrived(*waiting.popleft())


_Bucket: TypeAlias = list[tuple[K, torch.Tensor]]


def _buckets(parts: Iterable[tuple[K, torch.Tensor]], most: int) -> Iterator[_Bucket[K]]:
    """Parts of one dtype in order, in buckets of up to ``most`` bytes."""
    for _, alike in groupby(parts, lambda keyed: keyed[1].dtype):
        for bucket, _ in filled(((keyed, keyed[1].nbytes) for keyed in alike), most):
            yield bucket


def _packed(parts: list[torch.Tensor]) -> torch.Tensor:
    """Copies of parts, one behind the other."""
    flat = parts[0].new_empty(sum(part.numel() for part in parts))
    copy_all(_views(flat, parts), parts)
    return flat


def _arrived(bucket: _Bucket[K], gathered: Callable[[], list[torch.Tensor]]) -> list[tuple[K, list[torch.Tensor]]]:
    parts = [part for _, part in bucket]
    by_rank = [_views(flat, parts) for flat in gathered()]
    return [(key, of_ranks) for (key, _), *of_ranks in zip(bucket, *by_rank, strict=True)]


def _views(flat: torch.Tensor, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in a flat one, of the shapes of these parts."""
    return [
        values.view(part.shape)
        for values, part in zip(flat.split([part.numel() for part in parts]), parts, strict=True)
    ]
