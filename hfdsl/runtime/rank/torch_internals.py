"""All private interfaces of torch that hfdsl imports; tested with torch 2.13.

``PrefixStore, Store, TCPStore``: ``torch.distributed`` has them under the same names, but its types do not export them.
``nccl_options``: the deadline of a group that is built by hand is a private field; the public functions that take a
deadline register the group as one of the process's own, whose ranks all have to take part.

Beside these, ``Tensor._version`` counts the writes into a tensor: the check of HF703 reads it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

__all__ = ["PrefixStore", "Store", "TCPStore", "nccl_options"]


def nccl_options(deadline: timedelta) -> Any:
    """The options of a NCCL process group with a ``deadline`` for its waits."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = deadline
    options.is_high_priority_stream = True  # digests and copies beside it would else take the processors first
    return options
