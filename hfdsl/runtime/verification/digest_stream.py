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

So slow a reading takes as long as the exchange, and must begin with it. To submit an exchange takes a host up to as
long as it takes the link, so a reading is submitted with its moment, and not after the exchange: that of a sender
before the first message, that of a bucket right after its writes. This holds for the launches of the last sync, which
take a few microseconds. In a sync that has to lay them out, they come after the exchange, which does not wait.

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
that are copied before they are read, or computed, are laid out in every sync, as are those on a host or on several
devices. The writes are complete only after the last reading has been submitted: were they others, the digests are
dropped, and all is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from hfdsl.runtime.digests import BegunDigests, DigestLayouts, DigestValues
from hfdsl.runtime.verification.kept_launches import DigestReading, ReadGroup
from hfdsl.runtime.weights.held_parts import HeldPart

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


@dataclass(frozen=True, slots=True)
class PiecesToRead:
    """The pieces of a rank, and what is ``given`` besides their memory for their groups, which can be compared.

    ``kinds`` has everything about the pieces but their addresses and values, if it has been listed already.
    """

    pieces: Mapping[str, HeldPart]
    given: tuple[Any, ...]
    kinds: Sequence[Any] | None = None

    def memory(self) -> tuple[Any, ...] | None:
        """Where they are in memory, and everything else about them but their values; None if one is computed."""
        parts = self.pieces.values()
        if not {*map(type, parts)} <= {HeldPart}:
            return None
        tensors = [part.tensor for part in parts]
        addresses = [*map(torch.Tensor.data_ptr, tensors)]
        if self.kinds is not None:
            return addresses, self.kinds
        strides = [*map(torch.Tensor.stride, tensors)]
        return addresses, [*self.pieces], [part.offset for part in parts], strides, [*map(_KIND, tensors)]


class DigestsBeside:
    """Digests of pieces on a separate stream, each read once the current stream has reached a moment."""

    def __init__(
        self, to_read: PiecesToRead, dtypes: Mapping[str, str] | None = None, layouts: DigestLayouts | None = None
    ) -> None:
        self._to_read = to_read  # the memory of the pieces stays until ``values``
        self._dtypes, self._layouts = dict(dtypes or {}), layouts or DigestLayouts()
        self._begun = BegunDigests(dtypes, self._layouts)
        self._again: DigestReading | None = None
        self._stream = _stream(torch.cuda.current_device()) if torch.cuda.is_available() else None

    def begin_again(self) -> bool:
        """Whether the pieces are where they were in the last sync, so that ``read_after`` reads them in its groups."""
        last = self._layouts.reading
        if last is None or last.of != self._follows_from():
            return False
        self._again = last
        with self._within():
            last.totals.zero_()
        return True

    def read_after(self, number: int, after: Moment) -> None:
        """Read the groups of the last sync that wait for the moment with this number."""
        launches = self._again.launches.get(number, ()) if self._again is not None else ()
        if launches:
            with self._once(after):
                for launch in launches:
                    launch.begin()

    def has_read(self, writes: Sequence[Any]) -> bool:
        """Whether ``read_after`` has read all pieces after their last write, if the moments followed these ``writes``.

        If it has not, what it has read does not count.
        """
        if self._again is not None and self._again.writes != writes:
            self._again = None
        return self._again is not None

    def read(
        self, groups: Callable[[], Iterable[GroupToRead]], moments: Sequence[Moment], writes: Sequence[Any] = ()
    ) -> None:
        """Read all pieces, in ``groups`` of their parts, each after one of the ``moments``.

        The groups follow from the pieces' memory, from what is given, and from the ``writes`` before each moment.
        """
        read: list[tuple[int, ReadGroup | None, bool]] = []
        for after, parts, beside in groups():
            with self._once(moments[after]):
                read.append((after, self._begun.add(parts, beside=beside), beside))
        in_place = [(after, group, beside) for after, group, beside in read if group is not None]
        of = self._follows_from()
        if of is not None and len(in_place) == len(read):
            with self._within():  # whose pool has the totals, as a reading that is dropped may still add to them
                self._layouts.reading = DigestReading.of_groups(of, writes, in_place)

    def _follows_from(self) -> tuple[Any, ...] | None:
        """All that the launches follow from but writes; None if they cannot be kept."""
        memory = self._to_read.memory()
        return None if memory is None else (self._to_read.given, self._dtypes, memory)

    def _once(self, after: Moment) -> AbstractContextManager[Any]:
        """The context of work on the stream, which first waits for a moment."""
        if self._stream is not None and after is not None:
            self._stream.wait_event(after)
        return self._within()

    def values(self) -> DigestValues:
        """The digests, in the order of the pieces; the host waits until all have been read."""
        with self._within():
            again = self._again
            return self._begun.values() if again is None else DigestValues(again.parts, again.values())

    def _within(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
