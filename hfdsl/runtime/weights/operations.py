"""The operations of an exchange in a process group; each returns what can be waited for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hfdsl.plan.resharding import WeightMessage
from hfdsl.plan.scheduled import ScheduledSync


@dataclass(frozen=True, slots=True)
class ExchangeGroup:
    """The process group of a sync's exchange, in which the readers follow the senders."""

    sync: ScheduledSync
    communicator: Any

    def send(self, message: WeightMessage, flat: torch.Tensor) -> Any:
        """Send a tensor of a message to its reader, or to all readers."""
        return self._broadcast(flat) if self.sync.broadcast else self._send(self._reader(message.target), flat)

    def receive(self, message: WeightMessage, flat: torch.Tensor) -> Any:
        """Receive a tensor of a message from its sender."""
        return self._broadcast(flat) if self.sync.broadcast else self._receive(self._sender(message.source), flat)

    def send_to_source(self, source: int, flat: torch.Tensor) -> Any:
        """Send a tensor from a reader to a source rank."""
        return self._send(self._sender(source), flat)

    def receive_from_target(self, target: int, flat: torch.Tensor) -> Any:
        """Receive a tensor of a target rank as a sender."""
        return self._receive(self._reader(target), flat)

    def _sender(self, source: int) -> int:
        return self.sync.senders.index(source)

    def _reader(self, target: int) -> int:
        return len(self.sync.senders) + target

    def _broadcast(self, flat: torch.Tensor) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.asyncOp = 0, True
        return self.communicator.broadcast([flat], options)

    def _send(self, rank: int, flat: torch.Tensor) -> Any:
        return self.communicator.send([flat], rank, 0)

    def _receive(self, rank: int, flat: torch.Tensor) -> Any:
        return self.communicator.recv([flat], rank, 0)


def wait(works: Iterable[Any]) -> None:
    """Wait for operations; on a GPU the current stream does."""
    for work in works:
        work.wait()
