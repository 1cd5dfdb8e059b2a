"""Captured steps of an engine, for tests and for processes that they start."""

from __future__ import annotations

import gc
from dataclasses import replace

import torch

from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl import workers as w
from hfdsl.rl.models import captured_generation, policies
from tests.rl.workers import tiny

WIDE = replace(  # heads of 64, as the attention kernels of GPUs like them
    tiny.MODEL, config={**tiny.LLAMA, "hidden_size": 256, "intermediate_size": 512}
)


def ragged(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts, and draws with which responses end after 1 to ``length`` tokens: by the last one of the vocabulary."""
    prompts, draw = tiny.prompts(rows), torch.Generator().manual_seed(0)
    lengths = torch.linspace(1, length, rows).long()[torch.randperm(rows, generator=draw), None]
    numbers = torch.rand(rows, length, generator=draw) * 0.8
    numbers = torch.where(torch.arange(length) == lengths - 1, 1 - 2.0**-24, numbers)
    return prompts.ids.tensor.cuda(), prompts.mask.tensor.cuda(), numbers.cuda()


def share_memory() -> None:
    """Fail unless the graphs of batches of several shapes share their memory."""
    rows, length = 512, 120  # 128 MiB of keys and values
    config, policy = w.GenerationConfig(length), policies.policy(WIDE, 1.0, SoleRank())
    ids, mask, numbers = ragged(rows, length)
    steps = captured_generation.CapturedGenerator(policy, config, [tiny.VOCABULARY - 1], tiny.PAD, None)

    def reserved() -> int:
        gc.collect()  # else what is left in cycles may be freed in between
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    steps(ids, mask, numbers)  # with what CUDA's libraries want for themselves
    steps.forget()
    empty, cached = reserved(), list[int]()
    for few, drawn_of_few in ((rows, numbers), (rows, None), (rows // 2, numbers[: rows // 2])):
        steps(ids[:few], mask[:few], drawn_of_few)
        cached.append(steps.kept())
    cache = 2 * 2 * 2 * 64 * 4 * rows * 128  # layers, both, heads, width, bytes
    assert cache < cached[0] < cached[2] < cached[0] + cache / 2
    assert abs(reserved() - empty - cached[2]) < cache / 2  # memory is reserved in large pieces
    steps.forget()
    assert steps.kept() == 0
    assert reserved() - empty < cache / 2
