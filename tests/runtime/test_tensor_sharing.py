"""Memory of GPUs that is lent and fetched, by a stand-in for CUDA's driver whose memory is the host's."""

# ruff: noqa: N802  # the names of methods are those of CUDA's functions
from __future__ import annotations

import ctypes
import struct
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hfdsl.runtime.transports import device_memory, tensor_sharing
from hfdsl.runtime.transports.tensor_sharing import SharedTensors, keep_mapped, mappings, read_shared

GONE = 400


class Driver:
    """Knows the blocks that tensors are in, by number; handles are the blocks' addresses."""

    def __init__(self) -> None:
        self.blocks: dict[int, torch.Tensor] = {}
        self.open: list[int] = []
        self.lost = False

    def allocate(self, numbers: int) -> torch.Tensor:
        block = torch.zeros(numbers)
        self.blocks[len(self.blocks) + 1] = block
        return block

    def _of(self, address: int) -> tuple[int, torch.Tensor]:
        return next(
            (number, block)
            for number, block in self.blocks.items()
            if block.data_ptr() <= address < block.data_ptr() + block.nbytes
        )

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, at: Any) -> int:
        _, block = self._of(at.value)
        base._obj.value, size._obj.value = block.data_ptr(), block.nbytes
        return 0

    def cuPointerGetAttribute(self, data: Any, attribute: int, at: Any) -> int:
        assert attribute == 7, "the number of the buffer"
        data._obj.value = self._of(at.value)[0]
        return 0

    def cuIpcGetMemHandle(self, handle: Any, base: Any) -> int:
        handle._obj.bytes[:8] = struct.pack("Q", base.value)
        return 0

    def cuIpcOpenMemHandle_v2(self, base: Any, handle: Any, flags: int) -> int:
        if self.lost:
            return GONE
        (base._obj.value,) = struct.unpack("Q", bytes(handle.bytes)[:8])
        self.open.append(base._obj.value)
        return 0

    def cuIpcCloseMemHandle(self, address: Any) -> int:
        self.open.remove(address.value)
        return 0

    def cuMemcpyAsync(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        assert any(at <= source.value < at + self._of(at)[1].nbytes for at in self.open)
        ctypes.memmove(target.value, source.value, size.value)
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"invalid resource handle"
        return 0


class Arrived(torch.Tensor):
    def record_stream(self, s: Any) -> None:
        assert s == "the bodies'"


class OnHost:
    """torch, with tensors of a GPU in the host's memory."""

    cuda = SimpleNamespace(
        set_device=lambda device: None,
        current_device=lambda: 0,
        is_initialized=lambda: True,
        Stream=SimpleNamespace,
        stream=lambda stream: nullcontext(),
        current_stream=lambda: SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
        default_stream=lambda: "the bodies'",
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: str) -> torch.Tensor:
        assert device == "cuda"
        return torch.empty(shape, dtype=dtype).as_subclass(Arrived)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake_driver = Driver()
    monkeypatch.setattr(device_memory, "_driver", lambda: fake_driver)
    for module in (device_memory, tensor_sharing):
        monkeypatch.setattr(module, "torch", OnHost())
    tensor_sharing._copy_stream.cache_clear()
    yield fake_driver
    keep_mapped(False)
    tensor_sharing._copy_stream.cache_clear()


def shared(*tensors: torch.Tensor) -> SharedTensors:
    return SharedTensors(
        [(tensor.shape, tensor.dtype) for tensor in tensors], [device_memory.region(tensor) for tensor in tensors]
    )


@pytest.mark.parametrize("keep", [False, True])
def test_parts_of_blocks_arrive_and_blocks_stay_mapped_if_they_may(driver: Driver, keep: bool) -> None:
    keep_mapped(keep)
    first, second = driver.allocate(100), driver.allocate(10)
    first.copy_(torch.arange(100))
    second.fill_(7)
    for turn in range(3):
        first[50] = turn
        wanted = [first[48:52], first[:4].view(2, 2), second]
        arrived = read_shared(shared(*wanted))
        assert [tensor.tolist() for tensor in arrived] == [tensor.tolist() for tensor in wanted]
        assert len(driver.open) == len(set(driver.open)) == len(mappings) == 2 * keep
    keep_mapped(False)
    assert driver.open == []


def test_a_block_is_named_by_its_maker_its_number_and_its_place(driver: Driver) -> None:
    block = driver.allocate(100)
    region, other_region = device_memory.region(block[10:20]), device_memory.region(block[90:])
    assert region.block == other_region.block
    assert (region.start, region.size, other_region.start, other_region.size) == (40, 40, 360, 40)
    assert (region.block.start, region.block.size, region.block.buffer_id) == (block.data_ptr(), 400, 1)
    assert device_memory.region(driver.allocate(100)).block.buffer_id == 2


def test_a_maker_that_is_gone_is_reported_and_nothing_of_it_stays(driver: Driver) -> None:
    keep_mapped(True)
    here, gone = shared(driver.allocate(10)), shared(driver.allocate(10))
    read_shared(here)
    driver.lost = True
    assert read_shared(here)[0].tolist() == [0.0] * 10, "what is mapped is there as long as it is mapped"
    with pytest.raises(RuntimeError, match="CUDA's driver says: invalid resource handle \\(400\\)"):
        read_shared(gone)
    assert len(mappings) == 1
