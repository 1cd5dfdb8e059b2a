"""Memory of a GPU that other processes of its node map: CUDA's own handles, by the driver's interface.

torch shares tensors too, but counts their readers, and a handle of its is for one reader alone. Here any number of
them read, and who lends keeps the memory until they have it.
"""

from __future__ import annotations

import ctypes
import secrets
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from hfdsl.runtime.mappings import Block

_LAZY_PEER_ACCESS, _BUFFER_ID = 1, 7


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


@dataclass(frozen=True, slots=True)
class Region:
    """Where bytes are: the block that they are a part of, and from where in it."""

    block: Block
    start: int
    size: int


def region(tensor: torch.Tensor) -> Region:
    """Where others find a contiguous tensor of this process's GPU.

    Raises:
        RuntimeError: where the memory cannot be mapped by others, as that of torch's expandable segments.
    """
    base, whole, number, handle = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64(), _Handle()
    at = ctypes.c_uint64(tensor.data_ptr())
    _check(_driver().cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(whole), at))
    _check(_driver().cuPointerGetAttribute(ctypes.byref(number), _BUFFER_ID, at))
    _check(_driver().cuIpcGetMemHandle(ctypes.byref(handle), base))
    block = Block(_own_name(), number.value, base.value, whole.value, bytes(handle.bytes))
    return Region(block, at.value - base.value, tensor.nbytes)


@cache
def _own_name() -> str:
    """Of this process; its number would be another's after its end."""
    return secrets.token_hex(8)


def opened(block: Block) -> int:
    """Map a block of another process: its address here.

    Raises:
        RuntimeError: where this GPU has no way to the other, or the process that lends is gone.
    """
    base, handle = ctypes.c_uint64(), _Handle.from_buffer_copy(block.handle)
    _check(_driver().cuIpcOpenMemHandle_v2(ctypes.byref(base), handle, _LAZY_PEER_ACCESS))
    return base.value


def closed(address: int) -> None:
    """Unmap a block, which nothing reads any more.

    Raises:
        RuntimeError: where CUDA has failed before.
    """
    _check(_driver().cuIpcCloseMemHandle(ctypes.c_uint64(address)))


def copy(to: torch.Tensor, address: int) -> None:
    """Fill a contiguous tensor with the bytes at an address, on the current stream."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    source, target = ctypes.c_uint64(address), ctypes.c_uint64(to.data_ptr())
    _check(_driver().cuMemcpyAsync(target, source, ctypes.c_size_t(to.nbytes), stream))


@cache
def _driver() -> Any:
    """The driver's library; a call of it lets other threads run."""
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA's driver says: {(text.value or b'?').decode()} ({code})")
