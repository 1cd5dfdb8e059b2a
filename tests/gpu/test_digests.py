"""Digests on a GPU are those of the host."""

from __future__ import annotations

import random

import pytest
import torch

from hfdsl.runtime.digests import BegunDigests, DeviceSums, device_sums, digests
from hfdsl.runtime.weights.held_parts import HeldPart

pytestmark = pytest.mark.gpu
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)
GENERATOR = torch.Generator().manual_seed(3)


def part(choice: random.Random) -> HeldPart:
    """Small ones of up to three dims, wide ones and long ones, which begin and end within words too."""
    shapes = (
        [choice.randint(1, 40) for _ in range(choice.randint(0, 3))],
        [choice.randint(1, 20), choice.randint(3000, 9000)],
        [choice.randint(3000, 30000)],
        [choice.randint(3000, 30000), choice.randint(1, 5)],
    )
    shape = choice.choice(shapes)
    tensor = (torch.randn(shape, generator=GENERATOR) * 50).to(choice.choice(DTYPES))
    return HeldPart(tensor, tuple(choice.randint(0, 3) for _ in shape))


@pytest.mark.parametrize("seed", range(20))
def test_a_gpu_and_the_host_agree(seed: int) -> None:
    choice = random.Random(seed)
    parts = [(str(index), part(choice)) for index in range(choice.randint(1, 40))]
    assert not isinstance(device_sums(), DeviceSums)
    on_gpu = [(name, HeldPart(held.tensor.cuda(), held.offset)) for name, held in parts]
    assert digests(on_gpu) == digests(parts)
    slow = BegunDigests()
    slow.add(on_gpu, beside=True)
    assert slow.digests() == digests(parts)


def test_strided_parts_and_casts_agree() -> None:
    weight = torch.randn(300, 500, generator=GENERATOR)
    for held in (weight[:, 3:77], weight.t(), weight[1:250:2]):
        casts = {"x": "bfloat16"}
        assert digests([("x", HeldPart(held.cuda()))], casts) == digests([("x", HeldPart(held))], casts)
        assert digests([("x", HeldPart(weight.cuda()[:, 3:77]))]) == digests([("x", HeldPart(weight[:, 3:77]))])


def test_more_than_two_billion_words_of_one_part_agree_with_those_of_its_halves() -> None:
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("too little memory")
    weight = torch.randint(-128, 127, (2**21 + 3, 2**13), dtype=torch.int8, device="cuda")
    edge = 2**20 + 1
    [whole] = digests([("x", HeldPart(weight))])
    halves = digests([("x", HeldPart(weight[:edge])), ("x", HeldPart(weight[edge:], (edge, 0)))])
    assert sum(half.value for half in halves) % 2**64 == whole.value
