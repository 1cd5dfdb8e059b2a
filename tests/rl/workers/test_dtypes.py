"""Models whose parameters have 16 bits rotate positions as those with 32 bits do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hfdsl.rl.models.loading import load
from tests.rl.workers import tiny


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rotary_frequencies_keep_their_precision(dtype: Any) -> None:
    wide = replace(tiny.MODEL, config={**tiny.LLAMA, "head_dim": 64})
    exact, narrow = load(wide), load(replace(wide, dtype=dtype))
    assert {parameter.dtype for parameter in narrow.parameters()} == {getattr(torch, dtype)}
    places = torch.arange(4_000)[None]
    states = torch.zeros(1, 4_000, 1)
    rotations = (model.model.rotary_emb(states, places) for model in (exact, narrow))
    for expected, rotation in zip(*rotations, strict=True):
        torch.testing.assert_close(rotation, expected)


def test_tied_weights_stay_tied() -> None:
    model = load(replace(tiny.MODEL, config={**tiny.LLAMA, "tie_word_embeddings": True}, dtype="bfloat16"))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
