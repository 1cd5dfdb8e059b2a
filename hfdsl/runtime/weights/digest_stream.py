"""Digests on a separate CUDA stream, so that an exchange of weights does not wait for them.

An example
----------
An engine loads three buckets. Its host submits everything before the first has arrived, and the device goes through
two streams, where ``|`` is a moment that the second stream waits for::

    current stream    writes bucket 0 |  writes bucket 1 |  writes bucket 2 |
    digests                              reads bucket 0     reads bucket 1     reads bucket 2

So what comes after the exchange is one bucket's reading, at the speed of the memory, about ten times that of a link.
Before that, and where weights are exported, digests are read slowly, by few processors: NCCL copies weights through the
same memory, and at its full speed a reader would take most of it.

Why it is right. *A digest reads what has been written*: the stream waits for an event that was recorded after the last
write into these parts. *Nothing overwrites them meanwhile*: ``digests`` waits on the host until the stream has read
all, and a rank calls it before the call returns that exports or loads, so before anything else can write. *Memory
stays*: the parts, their factors and the kernel's tables belong to this object until then, so the allocator cannot give
their memory to the current stream while this one still reads it, and needs no ``record_stream``. What this stream
allocates comes from its own pool. On a CPU there is no stream, and parts are read as they are added.

What the next sync keeps. A model has hundreds of weights, and to lay out their groups and tables takes a host longer
than a short exchange takes its link. So a ``DigestReading`` keeps the launches, which read addresses, and all that they
follow from: the name, offset, address, dtype, shape, strides and device of every piece, the dtypes to read them in, and
which moment follows which writes. Every sync takes these from the tensors as they are then, and compares. Where all are
equal, the launches would be, too; where one is not, all is laid out again. A launch keeps no memory of a role, so an
address may have been freed and used again since: where it is that of a piece of this sync, it is the one to read. Parts
that are copied before they are read, or computed, are laid out in every sync, as are those on a host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from hfdsl.runtime.digests import BegunDigests, ComputedPart, DigestLayouts, DigestValues, HeldPart
from hfdsl.runtime.weights.digest_readings import DigestReading, ReadGroup

Moment: TypeAlias = "torch.cuda.Event | None"
"""A point in the current stream of a GPU; None on a CPU, where all earlier work has finished."""


def moment() -> Moment:
    """The point after all work submitted to the current stream so far."""
    if not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()
    event.record()
    return event


@lru_cache(maxsize=8)
def _stream(device: int) -> Any:
    return torch.cuda.Stream(device)


class GroupToRead(NamedTuple):
    """Parts to read after the moment with a number, slowly ``beside`` an exchange."""

    after: int
    parts: Sequence[tuple[str, HeldPart]]
    beside: bool


_KIND: Final = attrgetter("dtype", "shape", "device")


def _memory(pieces: Mapping[str, HeldPart]) -> tuple[Any, ...] | None:
    """Where pieces are in memory, and everything else about them but their values; None if one is computed."""
    parts = pieces.values()
    if any(isinstance(part, ComputedPart) for part in parts):
        return None
    tensors = [part.tensor for part in parts]
    addresses, strides = map(torch.Tensor.data_ptr, tensors), map(torch.Tensor.stride, tensors)
    return [*pieces], [part.offset for part in parts], [*addresses], [*strides], [*map(_KIND, tensors)]


class DigestsBeside:
    """Digests of pieces on a separate stream, each read once the current stream has reached a moment."""

    def __init__(self, dtypes: Mapping[str, str] | None = None, layouts: DigestLayouts | None = None) -> None:
        self._dtypes, self._layouts = dict(dtypes or {}), layouts or DigestLayouts()
        self._begun = BegunDigests(dtypes, self._layouts)
        self._pieces: Mapping[str, HeldPart] = {}
        self._stream = _stream(torch.cuda.current_device()) if torch.cuda.is_available() else None

    def read(
        self,
        pieces: Mapping[str, HeldPart],
        given: tuple[Any, ...],
        groups: Callable[[], Iterable[GroupToRead]],
        moments: Sequence[Moment],
    ) -> None:
        """Read all pieces, in ``groups`` of their parts, each after one of the ``moments``.

        The groups follow from the pieces' memory and from what is ``given``, which can be compared.
        """
        self._pieces = pieces  # their memory stays until ``values``
        last = self._layouts.reading
        if last is not None and last.of == (given, self._dtypes, _memory(pieces)):
            for after, group, beside in last.groups:
                with self._once(moments[after]):
                    self._begun.add_again(group, beside=beside)
            return
        read: list[tuple[int, ReadGroup | None, bool]] = []
        for after, parts, beside in groups():
            with self._once(moments[after]):
                read.append((after, self._begun.add(parts, beside=beside), beside))
        in_place = [(after, group, beside) for after, group, beside in read if group is not None]
        if len(in_place) == len(read):
            self._layouts.reading = DigestReading((given, self._dtypes, _memory(pieces)), in_place)

    def _once(self, after: Moment) -> AbstractContextManager[Any]:
        """The context of work on the stream, which first waits for a moment."""
        if self._stream is not None and after is not None:
            self._stream.wait_event(after)
        return self._within()

    def values(self) -> DigestValues:
        """The digests, in the order of the pieces; the host waits until all have been read."""
        with self._within():
            return self._begun.values()

    def _within(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
