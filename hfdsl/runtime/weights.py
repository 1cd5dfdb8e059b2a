"""Weights to any number of processes: broadcasts over a group of the holder and its readers, small tensors together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from hfdsl.runtime.store import as_bytes

BUCKET: Final = 16 * 2**20
"""Bytes of a bucket; a tensor at least as large goes alone, from its place and into its place."""

_AT_ONCE: Final = 8
"""Buckets that are held at a time, so that many small tensors take no second copy of the whole."""

_ALIGNED: Final = 16
"""Every tensor begins at a multiple of this in its bucket, so that it can be read as its own dtype there."""


def broadcast(tensors: Iterable[torch.Tensor], group: Any, root: int = 0, bucket: int = BUCKET) -> None:
    """Every rank's tensors become those of ``root``, in place; all ranks give the same shapes and dtypes in one order.

    ``group`` is ``Member.group``'s. On a GPU the values are there for whatever the current stream does next. A tensor
    that is strided on one rank must be so on all.

    Raises:
        RuntimeError: from torch, when a peer is lost or does not come in time.
    """
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.asyncOp = True

    def send(loads: Sequence[_Load]) -> None:
        works = []
        for load in loads:
            if group.rank() == root:
                load.pack()  # while those before it are on their way
            works.append(group.broadcast([load.flat], options))
        for load, work in zip(loads, works, strict=True):
            work.wait()
            if group.rank() != root:
                load.unpack()

    with torch.no_grad():
        loads, buckets = list[_Load](), 0
        for load in _loads(tensors, bucket):
            loads.append(load)
            buckets += bool(load.packed)
            if buckets == _AT_ONCE:
                send(loads)
                loads, buckets = [], 0
        send(loads)


@dataclass(frozen=True, slots=True)
class _Load:
    """What is sent at once: the bytes, and the tensors that are copied in and out of them."""

    flat: torch.Tensor
    packed: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def pack(self) -> None:
        for tensor, room in self.packed:
            room.copy_(tensor)

    def unpack(self) -> None:
        for tensor, room in self.packed:
            tensor.copy_(room)


def _loads(tensors: Iterable[torch.Tensor], bucket: int) -> Iterator[_Load]:
    part, starts = list[torch.Tensor](), [0]
    for tensor in tensors:
        room = -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        if tensor.nbytes >= bucket and tensor.is_contiguous():
            yield _Load(as_bytes(tensor))
        elif tensor.numel():
            if part and starts[-1] + room > bucket:
                yield _bucket(part, starts)
                part, starts = [], [0]
            part.append(tensor)
            starts.append(starts[-1] + room)
    if part:
        yield _bucket(part, starts)


def _bucket(part: Sequence[torch.Tensor], starts: Sequence[int]) -> _Load:
    flat = torch.empty(starts[-1], dtype=torch.uint8, device=part[0].device)
    rooms = [
        flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(part, starts, strict=False)
    ]
    return _Load(flat, list(zip(part, rooms, strict=True)))
