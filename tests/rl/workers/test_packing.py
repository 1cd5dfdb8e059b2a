"""Packed sequences give the numbers and the gradients of padded ones, and no sequence sees another."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.errors import ConfigError, ResourceError
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl import workers as w
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.loading import load
from hfdsl.rl.models.micro_batches import micro_batches
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, everything, numbers, tensors
from tests.rl.workers.programs import policy as weights_of

WINDOW = 3
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": WINDOW},
    "gemma3_text": {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "granite": {"logits_scaling": 4.0},
    "phi3": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


@st.composite
def padded(draw: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Ids i64[b, t] and mask bool[b, t] of prompts with a token or more, and how many columns responses have."""
    before, after = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    lengths = draw(st.lists(st.tuples(st.integers(1, before), st.integers(0, after)), min_size=1, max_size=5))
    column = torch.arange(before + after)
    mask = torch.stack([(column >= before - left) & (column < before + right) for left, right in lengths])
    ids = torch.randint(
        2, tiny.VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))
    )
    return torch.where(mask, ids, tiny.PAD), mask, after


def learned(module: Any, inputs: tuple[Any, ...], mask: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The results of a pass on real tokens, and the gradients of a sum that weighs each of them differently."""
    outputs = module(*inputs)
    columns = [column.where(mask, 0) for column in (outputs if isinstance(outputs, tuple) else (outputs,))]
    module.zero_grad()
    weights = torch.linspace(0.5, 2, mask.numel()).view(mask.shape)
    sum((column * weights).sum() for column in columns).backward()
    return [column.detach() for column in columns], {name: p.grad for name, p in module.named_parameters()}


def assert_alike(pairs: list[tuple[Any, tuple[Any, ...]]], mask: torch.Tensor) -> None:
    (expected, gradients), (columns, others) = (learned(module, inputs, mask) for module, inputs in pairs)
    for column, whole in zip(columns, expected, strict=True):
        torch.testing.assert_close(column, whole, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        if gradient is not None:
            torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@cache
def modules(kind: type[Policy] | type[Scorer], name: str) -> tuple[Any, Any]:
    """A model that pads, and the same one packing."""
    config = w.ModelConfig(config={**tiny.LLAMA, **FAMILIES[name], "model_type": name})
    if kind is Policy:
        return Policy(load(config), 0.7, SoleRank()), Policy(load(config), 0.7, SoleRank(), packing=True)
    head = torch.linspace(-1, 1, tiny.LLAMA["hidden_size"])[None]
    return Scorer(load(config), head, SoleRank()), Scorer(load(config), head, SoleRank(), packing=True)


@pytest.mark.parametrize("name", FAMILIES)
@given(padded())
@settings(max_examples=15)
def test_log_probs_entropies_and_gradients(name: str, rows: tuple[torch.Tensor, torch.Tensor, int]) -> None:
    ids, mask, length = rows
    inputs = ids, mask, length, "differentiable"
    assert_alike([(module, inputs) for module in modules(Policy, name)], mask[:, -length:])


@pytest.mark.parametrize("name", ["llama", "mistral"])
@given(padded())
@settings(max_examples=15)
def test_numbers_of_each_token(name: str, rows: tuple[torch.Tensor, torch.Tensor, int]) -> None:
    ids, mask, _ = rows
    assert_alike([(module, (ids, mask)) for module in modules(Scorer, name)], mask)


@given(padded(), st.data())
@settings(max_examples=15)
def test_no_row_sees_another(rows: tuple[torch.Tensor, torch.Tensor, int], data: Any) -> None:
    """Not even one without a prompt."""
    ids, mask, length = rows
    mask[data.draw(st.integers(0, len(mask) - 1)), :-length] = False
    _, packing = modules(Policy, "llama")
    together, _ = packing(ids, mask, length)
    for row in range(len(ids)):
        alone, _ = packing(ids[row : row + 1], mask[row : row + 1], length)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)


@given(padded(), st.integers(1, 40))
def test_micro_batches_count_real_tokens(rows: tuple[torch.Tensor, torch.Tensor, int], tokens: int) -> None:
    _, mask, length = rows
    parts = micro_batches(mask, length, w.BatchingConfig(tokens=tokens, packing=True))
    assert sorted(row for part in parts for row in part.rows.tolist()) == list(range(len(mask)))
    for part in parts:
        part_mask = part.sequences(mask, length)
        assert torch.equal(part_mask.sum(1), mask[part.rows].sum(1))
        assert len(part.rows) == 1 or int(part_mask.sum()) <= tokens


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_a_step_of_all_roles(autocast: Any) -> None:
    """Rollouts, log-probs, values and updates, with activations recomputed."""
    relative, absolute = (1e-3, 1e-5) if autocast is None else (0.1, 0.03)

    def ran(packing: bool) -> tuple[Any, dict[str, torch.Tensor]]:
        batching = w.BatchingConfig(tokens=25, packing=packing)
        training = replace(tiny.TRAINING, checkpointing=True, autocast=autocast)
        roles = tiny.deployment(
            2,
            actor=replace(tiny.ACTOR, training=training, batching=batching),
            critic=replace(tiny.CRITIC, training=training, batching=batching),
            reference=replace(tiny.REFERENCE, autocast=autocast, batching=batching),
            reward=tiny.VERIFIER,
        )
        with everything.compile(roles, SIZES).launch("local", seed=3) as running:
            return running.step(tiny.prompts(ROWS)), running.also(weights_of.compile(roles)).step()

    (whole_step, weights), (packed_step, others) = ran(packing=False), ran(packing=True)
    assert torch.equal(whole_step[0].ids.tensor, packed_step[0].ids.tensor)
    for whole, packed in zip((*whole_step[:4], *whole_step[4]), (*packed_step[:4], *packed_step[4]), strict=True):
        for name, column in tensors(whole).items():
            torch.testing.assert_close(tensors(packed)[name], column, rtol=relative, atol=absolute, msg=name)
    for whole, packed in zip((*whole_step[5], *whole_step[6]), (*packed_step[5], *packed_step[6]), strict=True):
        assert numbers(packed) == pytest.approx(numbers(whole), rel=relative, abs=absolute)
    if autocast is None:
        for name, weight in weights.items():
            torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"model_type": "gemma2", "head_dim": 8, "query_pre_attn_scalar": 8},
            "Gemma2ForCausalLM implements its own attention",
        ),
        ({"attn_implementation": "eager"}, "attention='eager' does not support sequences"),
        ({"model_type": "bloom", "n_head": 4}, "BloomForCausalLM implements its own attention"),
    ],
)
def test_models_that_cannot_pack_are_refused(config: dict[str, Any], text: str) -> None:
    attention = config.pop("attn_implementation", None)
    model = w.ModelConfig(config={**tiny.LLAMA, **config}, attention=attention)
    with pytest.raises(ResourceError) as error:
        w.Reference(w.ReferenceConfig(model, batching=w.BatchingConfig(packing=True)))
    assert error.value.code == "HF812"
    assert text in error.value.message


def test_rows_of_full_width_are_not_packed() -> None:
    with pytest.raises(ConfigError, match="rows=2 pads every row to full width"):
        w.BatchingConfig(rows=2, packing=True)
