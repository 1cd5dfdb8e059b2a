"""Where copies between devices convert, on tensors without memory."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hfdsl.runtime.copying import converted


@pytest.mark.parametrize(
    ("source", "target", "dtype"),
    [
        ("cuda", "cpu", torch.bfloat16),
        ("cuda", "cuda", torch.float32),
        ("cpu", "cuda", torch.float32),
        ("cpu", "cpu", torch.float32),
    ],
)
def test_what_leaves_a_gpu_is_converted_there(source: str, target: str, dtype: torch.dtype) -> None:
    with FakeTensorMode():
        copied = converted(torch.empty(4, device=source), torch.empty(4, dtype=torch.bfloat16, device=target))
    assert (copied.device.type, copied.dtype) == (source, dtype)
