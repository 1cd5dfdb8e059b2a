"""Broadcasts of values: everybody is told what comes, and all of them take the tensors at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hfdsl.runtime.direct import member
from hfdsl.runtime.parcel import Parcel, Tensors
from hfdsl.runtime.weights import broadcast

_groups: dict[tuple[int, ...], Any] = {}
"""The groups that this process takes part in, by ranks of the links; the first one sends."""


def _group(ranks: tuple[int, ...]) -> Any:
    if ranks not in _groups:
        _groups[ranks] = member().group(ranks)
    return _groups[ranks]


def meet(_: Any, groups: Sequence[tuple[int, ...]]) -> None:
    """Connect this process with the others of its groups; all of them meet in one order."""
    for ranks in groups:
        if member().rank in ranks:
            broadcast([torch.zeros(1, device=member().device)], _group(ranks))


@dataclass(frozen=True, slots=True)
class Announced:
    """A value without its tensors, which its readers take together."""

    ranks: tuple[int, ...]
    head: bytes
    buffers: Sequence[Any]
    sizes: Sequence[tuple[torch.Size, torch.dtype]]

    def receive(self) -> Any:
        """The value, once its maker sends and all other readers receive.

        Raises:
            RuntimeError: from torch, when a peer is lost or does not come in time.
        """
        tensors = [torch.empty(size, dtype=dtype, device=member().device) for size, dtype in self.sizes]
        broadcast(tensors, _group(self.ranks))
        return Parcel(self.head, list(self.buffers), Tensors(tensors)).open()


def announced(parcel: Parcel, ranks: Sequence[int]) -> Announced:
    """What the readers of a parcel are told."""
    sizes = [(tensor.shape, tensor.dtype) for tensor in parcel.tensors.tensors]
    return Announced(tuple(ranks), parcel.head, parcel.buffers, sizes)


def send(parcel: Parcel, ranks: Sequence[int]) -> None:
    """The maker's part.

    Raises:
        RuntimeError: from torch, when a reader is lost or does not come in time.
    """
    broadcast(parcel.tensors.tensors, _group(tuple(ranks)))
