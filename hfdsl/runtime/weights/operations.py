"""The operations of an exchange in a process group; each returns what can be waited for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


def broadcast(communicator: Any, flat: torch.Tensor) -> Any:
    """Send a tensor from the first rank to all others, or receive it there."""
    options = dist.BroadcastOptions()
    options.rootRank, options.asyncOp = 0, True
    return communicator.broadcast([flat], options)


def send(communicator: Any, rank: int, flat: torch.Tensor) -> Any:
    """Send a tensor to a rank of the group."""
    return communicator.send([flat], rank, 0)


def receive(communicator: Any, rank: int, flat: torch.Tensor) -> Any:
    """Receive a tensor from a rank of the group."""
    return communicator.recv([flat], rank, 0)


def wait(works: Iterable[Any]) -> None:
    """Wait for operations; on a GPU the current stream does."""
    for work in works:
        work.wait()
