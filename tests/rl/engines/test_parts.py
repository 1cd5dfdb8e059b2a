"""Weights in parts are the weights: all of them, once, in order, as copies."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.rl.engines.parts import parts

SHAPES = st.lists(st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple), max_size=8)


@given(SHAPES, st.integers(1, 200))
def test_parts_hold_all_weights_in_order(shapes: list[tuple[int, ...]], limit: int) -> None:
    weights = [(f"w{i}", torch.randn(shape)) for i, shape in enumerate(shapes)]
    sent = list(parts(weights, torch.float32, limit))
    received = [weight for part in sent for weight in part.weights()]
    assert [name for name, _ in received] == [name for name, _ in weights]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(weights, received, strict=True))
    for part in sent:
        assert len(part.shapes) == 1 or 4 * sum(map(prod, part.shapes.values())) <= limit


def test_a_part_is_a_copy_in_the_dtype_of_the_engine() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    [part] = parts([("w", weight)], torch.float32)
    with torch.no_grad():
        weight.zero_()
    assert part.values.tolist() == [1, 1, 1]
    [half] = parts([("w", weight)], torch.bfloat16)
    assert half.values.dtype == torch.bfloat16
