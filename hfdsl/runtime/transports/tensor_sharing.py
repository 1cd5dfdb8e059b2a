"""Tensors that one process shares and others of its host copy, without further work by the sharing process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hfdsl.runtime.rank.store import as_bytes
from hfdsl.runtime.transports.device_memory import Mappings, Region, copy, map_block, region, unmap_block

mappings = Mappings(map_block, unmap_block)
"""The blocks of other processes mapped by this process."""


@dataclass(frozen=True, slots=True)
class SharedTensors:
    """A reference to tensors for readers: shapes and dtypes, and the places of their bytes.

    A location is None for a tensor without elements, and the path of a file in memory on a CPU.
    """

    sizes: Sequence[tuple[torch.Size, torch.dtype]]
    locations: Sequence[Region | str | None]

    @property
    def on_gpu(self) -> bool:
        """Whether some of the memory is on a GPU."""
        return any(isinstance(location, Region) for location in self.locations)

    def close(self) -> None:
        """Close the files of tensors on a CPU."""
        for path in self.locations:
            if isinstance(path, str):
                os.close(int(path.rpartition("/")[2]))


def share(tensors: Sequence[torch.Tensor]) -> SharedTensors:
    """The places of contiguous tensors for other processes of the host; the caller keeps them until they are read.

    Waits for what the GPU still computes: a reader has one thread for all that it reads, which must not wait for a GPU
    that in turn may wait for what the thread reads next.

    Raises:
        RuntimeError: where other processes cannot map the memory.
        AttributeError: on a system without files in memory.
    """
    sizes = [(tensor.shape, tensor.dtype) for tensor in tensors]
    shared = SharedTensors(sizes, locations := list[Region | str | None]())
    try:
        for tensor in tensors:
            locations.append(_location(tensor) if tensor.numel() else None)
    except BaseException:
        shared.close()
        raise
    if shared.on_gpu:
        torch.cuda.current_stream().synchronize()
    return shared


def _location(tensor: torch.Tensor) -> Region | str:
    if tensor.is_cuda:
        return region(tensor)
    descriptor = os.memfd_create("hfdsl")
    _file(f"/proc/self/fd/{descriptor}", tensor.nbytes).copy_(as_bytes(tensor))
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def read_shared(shared: SharedTensors) -> list[torch.Tensor]:
    """Copies of shared tensors of another process; on a GPU they are complete on return, whatever else runs there.

    Raises:
        OSError: where the process is gone.
        RuntimeError: where its GPU cannot be read from here.
    """
    if not shared.on_gpu:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return [
            torch.empty(shape, dtype=dtype, device=device)
            if path is None
            else _read_file(str(path)).view(dtype).view(shape)
            for path, (shape, dtype) in zip(shared.locations, shared.sizes, strict=True)
        ]
    _set_device()
    with torch.cuda.stream(_copy_stream()):
        tensors = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in shared.sizes]
        pairs = zip(tensors, shared.locations, strict=True)
        regions = [(target, location) for target, location in pairs if isinstance(location, Region)]
        with mappings.mapped([source.block for _, source in regions]) as addresses:
            try:
                for target, source in regions:
                    copy(target, addresses[source.block] + source.start)
            finally:
                # Before the memory may be unmapped, or written by its producer.
                torch.cuda.current_stream().synchronize()
    for tensor in tensors:
        tensor.record_stream(torch.cuda.default_stream())  # else the allocator could reuse its memory while it is read
    return tensors


def keep_mapped(keep: bool) -> None:
    """Keep mappings for the next transfers from now on, or unmap everything."""
    mappings.keep = keep
    if not keep:
        if torch.cuda.is_initialized():
            _set_device()
        mappings.release()


def _set_device() -> None:
    """Set the thread's current device, since Ray reads on a separate thread."""
    torch.cuda.set_device(torch.cuda.current_device())


def _read_file(path: str) -> torch.Tensor:
    return _file(path, Path(path).stat().st_size).clone()


def _file(path: str, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


@cache
def _copy_stream() -> Any:
    """The stream for copies, separate from that of the bodies, so that a copy starts while they run."""
    return torch.cuda.Stream()
