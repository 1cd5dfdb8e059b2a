"""Rows that have ended leave the batch, and nothing that the others are given changes; what captured steps keep."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hfdsl as hf
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R, Rollout
from hfdsl.rl.models import captured_generation, generation, grouped_attention
from hfdsl.rl.models.captured_generation import CapturedGenerator
from hfdsl.rl.models.forward import Policy, positions
from hfdsl.rl.models.generation import generate, sample
from hfdsl.rl.models.loading import load
from hfdsl.rl.models.policies import policy as build_policy
from tests.rl.workers import tiny

LENGTH, END = 24, tiny.VOCABULARY - 1
CONFIG = w.GenerationConfig(LENGTH)
PEAKED = {**tiny.LLAMA, "initializer_range": 0.2}  # so that the next token hangs on those before
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": PEAKED,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **PEAKED, "model_type": "gpt2"},
    "gemma2": {  # every other layer attends to a window
        **PEAKED,
        "model_type": "gemma2",
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 6,
    },
    "lfm2": {  # a layer of convolutions and one of attention, whose caches differ
        **PEAKED,
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    },
}
LENGTHS = {
    "ragged": [7, 1, 24, 3, 3, 12, 19, 1, 9, 2, 16, 5],
    "at once": [10] * 8,
    "at the first token": [1] * 4,
    "none ends": [LENGTH] * 5,
    "one lives long": [2, 2, 3, 24, 2, 1, 2, 3],
    "one row": [9],
}


def model(name: str = "llama", temperature: float = 1.0) -> Policy:
    return build_policy(w.ModelConfig(config=FAMILIES[name]), temperature, SoleRank())


def uniforms(lengths: list[int]) -> torch.Tensor:
    """Draws with which a row ends at its length, or before: the end is the last token of the vocabulary."""
    numbers = torch.rand(len(lengths), LENGTH, generator=torch.Generator().manual_seed(1)) * 0.5
    return torch.where(torch.arange(LENGTH) == torch.tensor(lengths)[:, None] - 1, 1 - 2.0**-24, numbers)


def prompts(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    batch = tiny.prompts(rows)
    return batch.ids.tensor, batch.mask.tensor


def sizes(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows every pass for a token has, as they are made."""
    row_counts, next_logits = list[int](), policy.next_logits

    def noted(ids: torch.Tensor, *others: Any) -> Any:
        row_counts.append(len(ids))
        return next_logits(ids, *others)

    monkeypatch.setattr(policy, "next_logits", noted)
    return row_counts


def plainly(policy: Policy, drawn: torch.Tensor | None, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return generate(policy, *prompts(rows), drawn, CONFIG, [END], tiny.PAD)


def hold(policy: Policy, drawn: torch.Tensor, responses: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Every token is what its draw takes after those before it, in a pass without a cache; and rows end as they say."""
    tokens, real = responses
    ids, mask = prompts(len(tokens))
    ids, mask = torch.cat([ids, tokens], 1), torch.cat([mask, real], 1)
    with torch.no_grad():
        hidden = policy.model.base_model(input_ids=ids, attention_mask=mask.long(), position_ids=positions(mask))[0]
    logits = policy.logits(hidden[:, -LENGTH - 1 : -1].flatten(0, 1))
    expected = sample(logits, drawn.flatten()).view_as(tokens)
    assert torch.equal(tokens[real], expected[real])
    assert (tokens[~real] == tiny.PAD).all()
    ended = (tokens == END).long().cumsum(1) - (tokens == END).long() > 0
    assert torch.equal(real, ~ended)


@pytest.mark.parametrize(
    ("name", "case"), [*(("llama", case) for case in LENGTHS), *((name, "ragged") for name in list(FAMILIES)[1:])]
)
def test_rows_that_stay_are_given_the_same(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, numbers = model(name), uniforms(LENGTHS[case])
    monkeypatch.setattr(generation, "COMPACTION_SHARE", 0.0)
    before = plainly(policy, numbers, len(numbers))
    monkeypatch.setattr(generation, "COMPACTION_SHARE", 0.75)
    row_counts = sizes(policy, monkeypatch)
    after = plainly(policy, numbers, len(numbers))
    for expected, tensor in zip(before, after, strict=True):
        assert torch.equal(expected, tensor)
    hold(policy, numbers, after)
    living = after[1].sum(0)  # those of a step are at least three quarters of its rows, but for the last one
    assert all(
        rows * 0.75 < max(int(living[step]), 1) for step, rows in enumerate(row_counts[: int((living > 0).sum())])
    )


def test_most_of_a_ragged_batch_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, lengths = model(), LENGTHS["one lives long"]
    row_counts = sizes(policy, monkeypatch)
    plainly(policy, uniforms(lengths), len(lengths))
    assert len(row_counts) > 5
    assert set(row_counts[3:]) == {1}


@pytest.mark.parametrize("case", LENGTHS)
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_captured_steps_of_halves_give_the_same(case: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_generation, "SPAN", 8)
    monkeypatch.setattr(captured_generation, "CHECK_EVERY", 2)
    policy, numbers = model(), uniforms(LENGTHS[case])
    monkeypatch.setattr(captured_generation, "MIN_ROWS", len(numbers))
    generator = CapturedGenerator(policy, CONFIG, [END], tiny.PAD, dtype)
    before = generator(*prompts(len(numbers)), numbers)
    monkeypatch.setattr(captured_generation, "MIN_ROWS", 1)
    row_counts = sizes(policy, monkeypatch)
    generator(*prompts(len(numbers)), numbers)
    row_counts.clear()
    after = generator(*prompts(len(numbers)), numbers)  # in what the batch before has left
    for expected, tensor in zip(before, after, strict=True):
        assert torch.equal(expected, tensor)
    if dtype is None:
        hold(policy, numbers, after)
    living = after[1].sum(0).tolist()
    for step in range(2, len(row_counts), 2):
        assert living[step] <= row_counts[step] == row_counts[min(step + 1, len(row_counts) - 1)] <= 2 * living[step]


@pytest.mark.parametrize("engine", ["plain", "captured"])
@pytest.mark.parametrize("greedy", [False, True])
def test_log_probs_of_rollouts_are_the_same_bits(engine: Any, greedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.dataflow
    def rollout(prompts: Prompts, actor: w.Actor) -> Rollout:
        return actor.generate(prompts, greedy=greedy)

    monkeypatch.setattr(captured_generation, "CHECK_EVERY", 2)
    config = replace(tiny.ACTOR, generation=replace(CONFIG, engine=engine), batching=w.BatchingConfig(rows=6))
    config = replace(config, model=replace(tiny.MODEL, config=PEAKED))
    sizes_of_dims: dict[type[hf.Dim], int] = {B: 12, P: tiny.PROMPT, R: LENGTH}
    rollouts = []
    for share, fewest in ((0.0, 6), (0.75, 1)):
        monkeypatch.setattr(generation, "COMPACTION_SHARE", share)
        monkeypatch.setattr(captured_generation, "MIN_ROWS", fewest)
        with rollout.compile(tiny.deployment(1, actor=config), sizes_of_dims).launch("local") as running:
            rollouts.append(running.step(tiny.prompts(12)))
    assert len(rollouts[0].response_mask.tensor.sum(1).unique()) > 2
    for name in ("ids", "mask", "response_mask", "log_probs"):
        assert torch.equal(*(getattr(result, name).tensor for result in rollouts)), name


# -- what captured steps keep


def test_all_shapes_share_the_weights_and_the_largest_cache() -> None:
    policy = model()
    generator = CapturedGenerator(policy, CONFIG, [END], tiny.PAD, "bfloat16")
    assert generator.kept() == 0
    for rows, greedy in ((2, True), (8, False), (4, True)):  # the first goes when the cache grows
        generator(*prompts(rows), None if greedy else uniforms([LENGTH] * rows))
    places = 32  # 5 of the prompt and 24, in eights
    states = sum(rows * (LENGTH * (4 + 8 + 1) + places * 8 + 1 + 3 * 8) + 2 * 8 for rows in (8, 4))
    linear = sum(m.weight.numel() for m in policy.modules() if isinstance(m, torch.nn.Linear))
    keys_and_values = 2 * 2 * 2 * 8  # layers, both, heads, width of a head
    assert generator.kept() == 2 * linear + 2 * keys_and_values * 8 * places + states
    generator.forget()
    assert generator.kept() == 0


def test_the_shapes_that_were_used_last_are_kept() -> None:
    generator = CapturedGenerator(model(), CONFIG, [END], tiny.PAD, None)
    for rows in (5, 1, 2, 3, 1, 4):
        generator(*prompts(rows), None)
    assert [shape.rows for shape in generator._batches] == [3, 1, 4]


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_model_elsewhere_takes_new_steps(kind: str) -> None:
    policy = model()
    generator = CapturedGenerator(policy, CONFIG, [END], tiny.PAD, None)
    generator(*prompts(4), None)
    [first] = generator._batches.values()
    generator(*prompts(4), None)
    assert list(generator._batches.values()) == [first]
    inner = policy.model.model
    if kind == "parameter":
        inner.norm.weight = torch.nn.Parameter(inner.norm.weight.detach().clone() * 2)
    else:
        inner.rotary_emb.inv_freq = inner.rotary_emb.inv_freq * 2
    tokens, _ = generator(*prompts(4), None)
    assert list(generator._batches.values()) != [first]
    assert torch.equal(tokens, plainly(policy, None, 4)[0])


def test_models_are_loaded_without_progress_bars(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    load(tiny.MODEL).save_pretrained(tmp_path)
    capfd.readouterr()
    load(w.ModelConfig(path=str(tmp_path)))
    assert "Loading weights" not in capfd.readouterr().err
    AutoModelForCausalLM.from_pretrained(tmp_path)  # of others they are shown as before
    assert "Loading weights" in capfd.readouterr().err


# -- attention by groups


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(0, 99))
def test_heads_of_a_group_attend_to_one_of_the_cache(rows: int, kept: int, group: int, slots: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, kept * group, 1, 4, generator=draw)
    key, value = (torch.randn(rows, kept, slots, 4, generator=draw) for _ in range(2))
    mask = (torch.rand(rows, 1, 1, slots, generator=draw) < 0.5).index_fill(3, torch.tensor([slots - 1]), value=True)
    attention = ALL_ATTENTION_FUNCTIONS[grouped_attention.GROUPED]
    attended, _ = attention(torch.nn.Module(), query, key, value, mask, scaling=0.3)
    for row, head in itertools.product(range(rows), range(kept * group)):
        shared = head // group
        scores = (key[row, shared] @ query[row, head, 0] * 0.3).masked_fill(~mask[row, 0, 0], -torch.inf)
        torch.testing.assert_close(attended[row, 0, head], scores.softmax(0) @ value[row, shared])
