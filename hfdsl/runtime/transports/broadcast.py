"""Broadcasts of tensors from one process to any number of others, with small tensors grouped in buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from hfdsl.runtime.rank.store import as_bytes
from hfdsl.runtime.transports.direct import member
from hfdsl.runtime.transports.serialization import PickledValue, Tensors

# -- tensors over a process group --------------------------------------------------------------------------------------

BUCKET_BYTES: Final = 16 * 2**20
"""The size of a bucket; a tensor of at least this size is sent alone, without a copy."""

_BUCKETS_IN_FLIGHT: Final = 8
"""The number of buckets that exist at a time, so that many small tensors need no second copy of the whole."""

_ALIGNMENT_BYTES: Final = 16
"""Every tensor starts at a multiple of this in its bucket, so that it can be viewed in its dtype there."""


def broadcast(
    tensors: Iterable[torch.Tensor], communicator: Any, root: int = 0, bucket_bytes: int = BUCKET_BYTES
) -> None:
    """Copy the tensors of ``root`` into every rank's, in place; all ranks pass the same shapes and dtypes in one order.

    ``communicator`` is one of ``Member.communicator``. On a GPU the values are there for whatever the current stream
    does next. A tensor that is strided on one rank must be so on all.

    Raises:
        RuntimeError: from torch, when a peer is lost or does not arrive in time.
    """
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.asyncOp = True

    def transfer(transfers: Sequence[_Transfer]) -> None:
        works = []
        for sent in transfers:
            if communicator.rank() == root:
                sent.copy_in()  # while those before it are on their way
            works.append(communicator.broadcast([sent.flat], options))
        for sent, work in zip(transfers, works, strict=True):
            work.wait()
            if communicator.rank() != root:
                sent.copy_out()

    with torch.no_grad():
        waiting, buckets = list[_Transfer](), 0
        for queued in _transfers(tensors, bucket_bytes):
            waiting.append(queued)
            buckets += bool(queued.views)
            if buckets == _BUCKETS_IN_FLIGHT:
                transfer(waiting)
                waiting, buckets = [], 0
        transfer(waiting)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """One broadcast of bytes: of a large tensor or of a bucket, with its tensors and their views of the bucket."""

    flat: torch.Tensor
    views: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def copy_in(self) -> None:
        for tensor, view in self.views:
            view.copy_(tensor)

    def copy_out(self) -> None:
        for tensor, view in self.views:
            tensor.copy_(view)


def _transfers(tensors: Iterable[torch.Tensor], bucket_bytes: int) -> Iterator[_Transfer]:
    part, starts = list[torch.Tensor](), [0]
    for tensor in tensors:
        room = -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if tensor.nbytes >= bucket_bytes and tensor.is_contiguous():
            yield _Transfer(as_bytes(tensor))
        elif tensor.numel():
            if part and starts[-1] + room > bucket_bytes:
                yield _bucket(part, starts)
                part, starts = [], [0]
            part.append(tensor)
            starts.append(starts[-1] + room)
    if part:
        yield _bucket(part, starts)


def _bucket(part: Sequence[torch.Tensor], starts: Sequence[int]) -> _Transfer:
    flat = torch.empty(starts[-1], dtype=torch.uint8, device=part[0].device)
    views = [
        flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(part, starts, strict=False)
    ]
    return _Transfer(flat, list(zip(part, views, strict=True)))


# -- values of a step --------------------------------------------------------------------------------------------------

_communicators: dict[tuple[int, ...], Any] = {}
"""The communicators of this process, by ranks of the links; the first rank sends."""


def communicator_of(ranks: tuple[int, ...]) -> Any:
    """The communicator of this process with these ranks; ``connect`` has made it."""
    if ranks not in _communicators:
        _communicators[ranks] = member().communicator(ranks)
    return _communicators[ranks]


def connect(_: Any, broadcasts: Sequence[tuple[int, ...]]) -> None:
    """Connect this process with those it exchanges tensors with; all processes connect in one order."""
    for ranks in broadcasts:
        if member().rank in ranks:
            broadcast([torch.zeros(1, device=member().device_of(ranks))], communicator_of(ranks))


@dataclass(frozen=True, slots=True)
class PendingBroadcast:
    """A value without its tensors, which all readers receive together in ``receive``."""

    ranks: tuple[int, ...]
    skeleton: bytes
    buffers: Sequence[Any]
    sizes: Sequence[tuple[torch.Size, torch.dtype]]

    @classmethod
    def of(cls, value: PickledValue, ranks: Sequence[int]) -> PendingBroadcast:
        """The message to a value's readers before the broadcast; the first rank creates it."""
        sizes = [(tensor.shape, tensor.dtype) for tensor in value.tensors.tensors]
        return cls(tuple(ranks), value.skeleton, value.buffers, sizes)

    def receive(self) -> Any:
        """Receive the value, once its producer sends and all other readers receive.

        Raises:
            RuntimeError: from torch, when a peer is lost or does not arrive in time.
        """
        tensors = [torch.empty(size, dtype=dtype, device=member().device) for size, dtype in self.sizes]
        broadcast(tensors, communicator_of(self.ranks))
        return PickledValue(self.skeleton, list(self.buffers), Tensors(tensors)).load()


def send(value: PickledValue, ranks: Sequence[int]) -> None:
    """The producer's part of a broadcast.

    Raises:
        RuntimeError: from torch, when a reader is lost or does not arrive in time.
    """
    broadcast(value.tensors.tensors, communicator_of(tuple(ranks)))
