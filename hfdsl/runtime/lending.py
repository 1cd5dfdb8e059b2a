"""Memory that one process lends and others of its node copy, without any more help of the lender's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hfdsl.runtime.device_memory import Region, closed, copy, opened, region
from hfdsl.runtime.mappings import Mappings
from hfdsl.runtime.store import as_bytes

_mappings = Mappings(opened, closed)
"""Of this process."""


@dataclass(frozen=True, slots=True)
class Loan:
    """What a reader must know of tensors: their shapes and dtypes, and where their bytes are.

    ``where`` is None for a tensor without numbers, a path on a CPU.
    """

    sizes: Sequence[tuple[torch.Size, torch.dtype]]
    where: Sequence[Region | str | None]

    @property
    def on_gpu(self) -> bool:
        """Whether there is memory of a GPU among it."""
        return any(isinstance(one, Region) for one in self.where)

    def close(self) -> None:
        """Let go of what was made beside the tensors."""
        for path in self.where:
            if isinstance(path, str):
                os.close(int(path.rpartition("/")[2]))


def lent(tensors: Sequence[torch.Tensor]) -> Loan:
    """Where other processes of the node find contiguous tensors, whose memory the caller keeps until they have it.

    What is still to be computed is waited for here: a reader has one thread for all that it reads, which must not wait
    for a GPU that may wait for what is read after it.

    Raises:
        RuntimeError: where others cannot map the memory.
        AttributeError: on a system without such memory.
    """
    loan = Loan([(tensor.shape, tensor.dtype) for tensor in tensors], where := list[Region | str | None]())
    try:
        for tensor in tensors:
            where.append(_place_of(tensor) if tensor.numel() else None)
    except BaseException:
        loan.close()
        raise
    if loan.on_gpu:
        torch.cuda.current_stream().synchronize()
    return loan


def _place_of(tensor: torch.Tensor) -> Region | str:
    if tensor.is_cuda:
        return region(tensor)
    number = os.memfd_create("hfdsl")
    _file(f"/proc/self/fd/{number}", tensor.nbytes).copy_(as_bytes(tensor))
    return f"/proc/{os.getpid()}/fd/{number}"


def fetched(loan: Loan) -> list[torch.Tensor]:
    """Copies of what another process lends; on a GPU they are there when this returns, whatever that is busy with.

    Raises:
        OSError: where the process is gone.
        RuntimeError: where its GPU cannot be read from here.
    """
    if not loan.on_gpu:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return [
            torch.empty(shape, dtype=dtype, device=device)
            if where is None
            else _read(str(where)).view(dtype).view(shape)
            for where, (shape, dtype) in zip(loan.where, loan.sizes, strict=True)
        ]
    _know_thread()
    with torch.cuda.stream(_own_stream()):
        here = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in loan.sizes]
        regions = [(to, one) for to, one in zip(here, loan.where, strict=True) if isinstance(one, Region)]
        with _mappings.mapped([one.block for _, one in regions]) as addresses:
            try:
                for to, one in regions:
                    copy(to, addresses[one.block] + one.start)
            finally:
                torch.cuda.current_stream().synchronize()  # before others may unmap the memory, or write it
    for tensor in here:
        tensor.record_stream(torch.cuda.default_stream())  # else its memory could be reused while it is read
    return here


def keep_mapped(keep: bool) -> None:
    """Whether what is mapped stays so for the next transfers, from now on; if not, nothing is mapped after this."""
    _mappings.keep = keep
    if not keep:
        if torch.cuda.is_initialized():
            _know_thread()
        _mappings.release()


def blocks_mapped() -> int:
    """How many blocks of other processes are mapped in this one."""
    return len(_mappings)


def _know_thread() -> None:
    """CUDA's driver knows threads one by one."""
    torch.cuda.set_device(torch.cuda.current_device())


def _read(path: str) -> torch.Tensor:
    return _file(path, Path(path).stat().st_size).clone()


def _file(path: str, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


@cache
def _own_stream() -> Any:
    """Not the bodies': a copy starts while they are busy."""
    return torch.cuda.Stream()
