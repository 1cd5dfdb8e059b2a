"""Copies between a GPU and the host."""

from __future__ import annotations

import pytest
import torch

from hfdsl.runtime.copying import copy_all

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_weights_that_leave_in_another_dtype_have_the_bits_of_the_hosts_conversion() -> None:
    sources = [torch.randn(3, 5), torch.randn(1000)]
    targets = [torch.empty_like(source, dtype=torch.bfloat16).pin_memory() for source in sources]
    copy_all(targets, [source.cuda() for source in sources])
    assert all(torch.equal(target, source.bfloat16()) for target, source in zip(targets, sources, strict=True))
