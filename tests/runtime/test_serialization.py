"""Serialized payloads: what arrives is what left, whatever its dtype and layout, and lies in the sender's bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hfdsl.plan.payloads import ColumnSlice
from hfdsl.runtime.rank.store import CopiedTensors
from hfdsl.runtime.transports.serialization import CopiedPayload, ZeroCopyPayload
from hfdsl.types.ragged import Jagged

SLICE = ColumnSlice(3, 0, "x", ((0, 2),))


def sent(value: Any, how: type[ZeroCopyPayload] | type[CopiedPayload] = ZeroCopyPayload, readers: int = 1) -> list[Any]:
    """What readers are given, from buffers that nobody may write."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(how({SLICE: value}), protocol=5, buffer_callback=buffers.append)
    copies = [bytes(buffer.raw()) for buffer in buffers]
    return [pickle.loads(data, buffers=copies)[SLICE] for _ in range(readers)]  # our own bytes


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(4) * 2


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "bool": lambda: torch.tensor([True, False]),
    "uint8": lambda: torch.tensor([1, 255], dtype=torch.uint8),
    "i16": lambda: torch.tensor([-1, 2], dtype=torch.int16),
    "i32": lambda: torch.tensor([-1, 2], dtype=torch.int32),
    "i64": lambda: torch.tensor([-1, 2]),
    "f16": lambda: torch.tensor([0.1, -2.0], dtype=torch.float16),
    "bf16": lambda: torch.tensor([0.1, -2.0], dtype=torch.bfloat16),
    "f32": lambda: torch.tensor([0.1, float("inf")]),
    "f64": lambda: torch.tensor([0.1, -0.0], dtype=torch.float64),
    "c64": lambda: torch.tensor([1 + 2j, 3j]),
    "scalar": lambda: torch.tensor(7),
    "no rows": lambda: torch.zeros(0, 3, dtype=torch.bfloat16),
    "no columns": lambda: torch.zeros(3, 0),
    "transposed": lambda: torch.arange(6).view(2, 3).t(),
    "every other row": lambda: torch.arange(8).view(4, 2)[::2],
    "expanded": lambda: torch.tensor([[1.0]]).expand(3, 2),
    "one row of a column": lambda: torch.arange(6.0).view(2, 3)[:1, 1],
    "rows of more": lambda: torch.arange(100)[40:42],
    "with a history": lambda: torch.ones(2, requires_grad=True) * 2,
    "a parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3j]).conj().imag,
    "inference": inference,
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_left(name: str) -> None:
    value = TENSORS[name]()
    [arrived] = sent(value)
    assert arrived.dtype == value.dtype
    assert torch.equal(arrived, value.detach())
    assert not arrived.requires_grad
    if name != "with a history":  # torch pickles leaves alone; hfdsl detaches what a body returns before it sends it
        [pickled] = sent(value, CopiedPayload)
        assert torch.equal(pickled, value.detach())


def test_ragged_columns_objects_and_what_is_absent() -> None:
    jagged = Jagged(torch.arange(3.0), torch.tensor([0, 1, 3]))
    for how in (ZeroCopyPayload, CopiedPayload):
        [arrived] = sent(jagged, how)
        assert arrived.values.tolist() == [0.0, 1.0, 2.0]
        assert arrived.offsets.tolist() == [0, 1, 3]
        assert sent(["a", {"b": 1}], how) == [["a", {"b": 1}]]
        assert sent(None, how) == [None]
        assert sent(2.5, how) == [2.5]


def test_readers_share_the_bytes_and_a_write_is_counted() -> None:
    """The memory is everybody's: that it was written is seen by the version, which is what HF703 looks at."""
    reader, other_reader = sent(torch.arange(4.0), readers=2)
    assert reader.data_ptr() == other_reader.data_ptr()
    before = reader._version
    assert reader[1:].neg().sum() == -6
    assert reader._version == before
    reader.add_(0)
    assert reader._version != before


def test_rows_of_a_large_column_leave_without_the_rest() -> None:
    rows = torch.zeros(10_000)[:10]
    for how in (ZeroCopyPayload, CopiedPayload):
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(how({SLICE: rows}), protocol=5, buffer_callback=buffers.append)
        assert len(data) + sum(buffer.raw().nbytes for buffer in buffers) < 2_000


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.bool])
def test_parts_of_weights_arrive_in_memory_of_their_reader(dtype: torch.dtype) -> None:
    part = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(dtype)
    parts: dict[str, dict[Any, torch.Tensor]] = {
        "w": {((0, 2), (0, 3)): part},
        "none": {((0, 0),): part.flatten()[:0]},
        "scale": {(): part[0, 1].clone()},
    }
    first, second = sent(CopiedTensors(parts), readers=2)
    first["w"][(0, 2), (0, 3)].zero_()
    for name, by_box in parts.items():
        for box, tensor in by_box.items():
            assert second[name][box].dtype == dtype
            assert second[name][box].tolist() == tensor.tolist()


@pytest.mark.parametrize("how", [ZeroCopyPayload, CopiedPayload])
def test_whole_weights_in_float8_arrive(how: type[ZeroCopyPayload] | type[CopiedPayload]) -> None:
    """As those of a role that exports them without a layout."""
    weight, scale = torch.tensor([[0.5, -2.0]]).to(torch.float8_e5m2), torch.ones(2)
    weights = {"w": weight, "scale": scale, "again": scale, "count": 3}
    [arrived] = sent(weights, how)
    assert (arrived["w"].dtype, arrived["w"].float().tolist()) == (torch.float8_e5m2, [[0.5, -2.0]])
    assert arrived["scale"].tolist() == [1.0, 1.0]
    assert arrived["again"] is arrived["scale"]
    assert arrived["count"] == 3
    arrived["w"].view(torch.uint8).zero_()  # its own memory


def test_parts_of_weights_in_float8_arrive_without_shared_buffers() -> None:
    part = torch.tensor([0.5, -2.0]).to(torch.float8_e4m3fn)
    [arrived] = sent(CopiedTensors({"w": {((0, 2),): part}}), CopiedPayload)
    assert arrived["w"][((0, 2),)].float().tolist() == [0.5, -2.0]
