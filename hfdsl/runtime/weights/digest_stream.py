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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from hfdsl.runtime.digests import BegunDigests, DigestLayouts, Digests, HeldPart

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


class DigestsBeside:
    """Digests of pieces on a separate stream, each read once the current stream has reached a moment."""

    def __init__(self, dtypes: Mapping[str, str] | None = None, layouts: DigestLayouts | None = None) -> None:
        self._begun = BegunDigests(dtypes, layouts)
        self._stream = _stream(torch.cuda.current_device()) if torch.cuda.is_available() else None

    def add(self, pieces: Iterable[tuple[str, HeldPart]], after: Moment, *, beside: bool = False) -> None:
        """Begin with pieces whose values are complete after this moment; ``beside`` an exchange, read them slowly."""
        if self._stream is not None and after is not None:
            self._stream.wait_event(after)
        with self._within():
            self._begun.add(pieces, beside=beside)

    def digests(self) -> Digests:
        """The digests, in the order of the pieces; the host waits until all have been read."""
        with self._within():
            return self._begun.digests()

    def _within(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
