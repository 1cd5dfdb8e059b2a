"""Exchanges of changed words on a GPU, both sides of which are threads of this process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hfdsl as hf
from hfdsl.plan.delta_memory import delta_bytes
from hfdsl.plan.message_memory import largest_bucket
from hfdsl.plan.resharding import compile_schedule
from hfdsl.protocols.layouts import Parameter, Replicas
from tests.runtime import test_exchange as exchanges

pytestmark = pytest.mark.gpu

MiB = 2**20


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.5])
def test_the_bits_are_those_of_all_words_in_the_planned_memory(share: float, broadcast: bool) -> None:
    weights = [Parameter(f"w{number}", (4096, 2048 + 8 * number), "bfloat16") for number in range(24)]
    weights += [Parameter(f"v{number}", (2048,), "float32") for number in range(24)]
    schedule = compile_schedule(weights, Replicas(), hf.Mesh(), Replicas(), hf.Mesh(), bucket_bytes=128 * MiB)
    sync = replace(exchanges.scheduled(schedule, Replicas(), Replicas(), broadcast=broadcast), deltas=True)
    random = torch.Generator("cuda").manual_seed(0)
    sent = {
        parameter.name: torch.randn(parameter.shape, device="cuda", generator=random).to(
            getattr(torch, parameter.dtype)
        )
        for parameter in weights
    }
    received = {name: torch.zeros_like(part) for name, part in sent.items()}
    largest, size = largest_bucket(schedule), sum(part.nbytes for part in sent.values())
    for step in range(3):
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _, errors = exchanges.exchanged(sync, [sent], [received], device="cuda")
        torch.cuda.synchronize()
        assert errors == []
        assert all(torch.equal(received[name], part) for name, part in sent.items())
        beside = torch.cuda.max_memory_allocated() - held - (size if step == 0 else 0)  # the copy stays
        rounding = MiB * (2 if step else len(weights))  # the allocator gives large tensors multiples of 2 MiB
        assert beside <= delta_bytes(largest, "exports") + delta_bytes(largest, "loads") + rounding
        for part in sent.values():
            part[torch.rand(part.shape, device="cuda", generator=random) < share] += 1
