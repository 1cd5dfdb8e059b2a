"""GPU memory that other processes of the host map, through the CUDA driver's IPC handles.

torch shares tensors too, but it counts their readers, and one of its handles serves a single reader. Here any number of
processes read, and the process that shares keeps the memory until all of them have read it.

A mapping takes CUDA 2 ms per GiB, and a copy from another GPU 3 ms, so a mapping is worth keeping (``Mappings``). It
must not

- let anybody read memory that its producer has freed. A block is identified by its producer and by the buffer ID that
  CUDA gives an allocation, which a process never gives twice; an equal address or handle does not make it the same
  block. And a block at the place of a newer one was freed: it is unmapped before the newer one is mapped.
- keep memory from being returned for long. Memory that a producer has freed becomes free only when its readers have
  unmapped it, so a block stays for a few transfers only, and not at all in runs whose roles return memory on purpose.
"""

from __future__ import annotations

import ctypes
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

UNMAP_AFTER_TRANSFERS: Final = 8
"""The number of consecutive transfers from a producer that do not use a block, after which it is unmapped."""

_LAZY_PEER_ACCESS: Final = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS of the CUDA driver."""

_BUFFER_ID: Final = 7
"""CU_POINTER_ATTRIBUTE_BUFFER_ID of the CUDA driver."""


@dataclass(frozen=True, slots=True)
class Block:
    """One allocation of a process; other processes map it by its ``handle``."""

    producer: str
    buffer_id: int
    start: int
    size: int
    handle: bytes

    def overlaps(self, other: Block) -> bool:
        """Whether two allocations overlap, so that at most one of them still exists."""
        disjoint = self.start + self.size <= other.start or other.start + other.size <= self.start
        return self.producer == other.producer and self.buffer_id != other.buffer_id and not disjoint


@dataclass(frozen=True, slots=True)
class Region:
    """A range of bytes: its block, and its offset in it."""

    block: Block
    start: int
    size: int


# -- the driver's calls ------------------------------------------------------------------------------------------------


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def region(tensor: torch.Tensor) -> Region:
    """The region of a contiguous tensor on this process's GPU, for other processes.

    Raises:
        RuntimeError: where other processes cannot map the memory, such as that of torch's expandable segments.
    """
    base, size, buffer_id, handle = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64(), _Handle()
    address = ctypes.c_uint64(tensor.data_ptr())
    _check(_driver().cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), address))
    _check(_driver().cuPointerGetAttribute(ctypes.byref(buffer_id), _BUFFER_ID, address))
    _check(_driver().cuIpcGetMemHandle(ctypes.byref(handle), base))
    block = Block(_process_name(), buffer_id.value, base.value, size.value, bytes(handle.bytes))
    return Region(block, address.value - base.value, tensor.nbytes)


@cache
def _process_name() -> str:
    """A unique name for this process; a process ID can be reused."""
    return secrets.token_hex(8)


def map_block(block: Block) -> int:
    """Map a block of another process; return its address here.

    Raises:
        RuntimeError: where this GPU cannot reach the other one, or the process that shares the block is gone.
    """
    base, handle = ctypes.c_uint64(), _Handle.from_buffer_copy(block.handle)
    _check(_driver().cuIpcOpenMemHandle_v2(ctypes.byref(base), handle, _LAZY_PEER_ACCESS))
    return base.value


def unmap_block(address: int) -> None:
    """Unmap a block that no transfer reads any more.

    Raises:
        RuntimeError: where CUDA failed before.
    """
    _check(_driver().cuIpcCloseMemHandle(ctypes.c_uint64(address)))


def copy(target: torch.Tensor, address: int) -> None:
    """Fill a contiguous tensor with the bytes at an address, on the current stream."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    size = ctypes.c_size_t(target.nbytes)
    _check(_driver().cuMemcpyAsync(ctypes.c_uint64(target.data_ptr()), ctypes.c_uint64(address), size, stream))


@cache
def _driver() -> Any:
    """The driver's library; a call into it releases the GIL."""
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA's driver says: {(text.value or b'?').decode()} ({code})")


# -- mappings that are kept --------------------------------------------------------------------------------------------


class Mappings:
    """The blocks mapped in this process. ``keep`` decides whether they stay mapped after a transfer.

    ``map_block`` returns the address of a block here, ``unmap_block`` takes that address. Transfers run one at a time,
    so that no thread unmaps what another one reads: a transfer has ended, on the GPU too, when ``mapped`` is left.
    """

    def __init__(self, map_block: Callable[[Block], int], unmap_block: Callable[[int], None]) -> None:
        self.keep = False
        self._map_block, self._unmap_block = map_block, unmap_block
        self._lock = threading.Lock()
        self._addresses: dict[Block, int] = {}
        self._last_used: dict[Block, int] = {}
        self._transfers = Counter[str]()

    def __len__(self) -> int:
        return len(self._addresses)

    @contextmanager
    def mapped(self, blocks: Sequence[Block]) -> Iterator[dict[Block, int]]:
        """The addresses of a transfer's blocks, within this context; they must not be used after it.

        Raises:
            RuntimeError: where this process cannot reach them, or the one that shares them is gone.
        """
        with self._lock:
            unique = dict.fromkeys(blocks)
            self._transfers.update({block.producer for block in unique})
            self._unmap(old for old in self._addresses if old not in unique and self._is_stale(old, unique))
            try:
                for block in unique:
                    if block not in self._addresses:
                        self._addresses[block] = self._map_block(block)
                    self._last_used[block] = self._transfers[block.producer]
                yield {block: self._addresses[block] for block in unique}
            except BaseException as error:
                try:
                    self._unmap(unique)
                except RuntimeError as another:
                    error.add_note(str(another))
                raise
            if not self.keep:
                self._unmap(unique)

    def _is_stale(self, old: Block, needed: Iterable[Block]) -> bool:
        """Whether a mapped block has long been unused, or is in the place of needed ones."""
        unused = self._transfers[old.producer] - self._last_used[old]
        return unused >= UNMAP_AFTER_TRANSFERS or any(old.overlaps(new) for new in needed)

    def release(self) -> None:
        """Unmap everything."""
        with self._lock:
            self._unmap(self._addresses)

    def _unmap(self, blocks: Iterable[Block]) -> None:
        for block in [block for block in blocks if block in self._addresses]:
            address = self._addresses.pop(block)
            self._last_used.pop(block, None)
            self._unmap_block(address)
