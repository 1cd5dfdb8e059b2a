"""All private interfaces of torch that hfdsl imports; tested with torch 2.13.

``PrefixStore, Store, TCPStore``: ``torch.distributed`` has them under the same names, but its types do not export them.
``nccl_options``: the deadline of a group that is built by hand is a private field; the public functions that take a
deadline register the group as one of the process's own, whose ranks all have to take part.
``begin_together``: the public function for several operations in one, ``batch_isend_irecv``, takes no broadcast and
only groups of the process's own.

Beside these, ``Tensor._version`` counts the writes into a tensor: the check of HF703 reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

__all__ = ["PrefixStore", "Store", "TCPStore", "begin_together", "nccl_options"]

T = TypeVar("T")


def nccl_options(deadline: timedelta) -> Any:
    """The options of a NCCL process group with a ``deadline`` for its waits."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = deadline
    options.is_high_priority_stream = True  # digests and copies beside it would else take the processors first
    return options


def begin_together(communicator: Any, begin: Callable[[T], Any], values: Sequence[T]) -> Sequence[Any]:
    """Begin an operation of a process group for each value, as one where the group can; returns what to wait for."""
    if len(values) == 1 or not getattr(communicator, "supports_coalescing", False):
        return [begin(value) for value in values]
    communicator._start_coalescing()
    try:
        for value in values:
            begin(value)
    finally:  # else all that this thread does with NCCL later would wait for the end of the group
        work = communicator._end_coalescing()
    return [work]
