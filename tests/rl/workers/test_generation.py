"""All engines sample from the policy; rows end where they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import ResourceError, RoleError
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, ImitationMetrics, P, Prompts, R, Rollout
from hfdsl.rl.models.generation import sample
from tests.rl.workers import tiny

ROWS = 8
SIZES: dict[type[hf.Dim], int] = {B: ROWS, P: tiny.PROMPT, R: tiny.RESPONSE}


@hf.dataflow
def rollouts(prompts: Prompts, actor: w.Actor) -> tuple[Rollout, Rollout]:
    return actor.generate(prompts), actor.generate(prompts, greedy=True)


@hf.dataflow
def learning(prompts: Prompts, actor: w.Actor) -> tuple[Rollout, Rollout, Rollout, ImitationMetrics]:
    """The policy learns what it drew, between one call and the next."""
    first = actor.generate(prompts)
    learned = actor.imitate(first)
    return first, actor.generate(prompts), actor.generate(prompts, greedy=True), learned


def trained(engine: Any, autocast: Any, **generation: Any) -> tuple[Rollout, ...]:
    training = replace(tiny.TRAINING, autocast=autocast)
    config = replace(tiny.ACTOR, training=training, generation=replace(tiny.GENERATION, engine=engine, **generation))
    with learning.compile(tiny.deployment(2, actor=config), SIZES).launch("local") as running:
        result: tuple[Rollout, ...] = running.step(tiny.prompts(ROWS))[:3]
    return result


def generated(seed: int = 0, **generation: Any) -> tuple[Rollout, Rollout]:
    config = replace(tiny.ACTOR, generation=replace(tiny.GENERATION, **generation))
    with rollouts.compile(tiny.deployment(2, actor=config), SIZES).launch("local", seed=seed) as running:
        result: tuple[Rollout, Rollout] = running.step(tiny.prompts(ROWS))
    return result


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_captured_steps_sample_what_the_plain_engine_does(
    autocast: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several spans of the cache, several micro-batches, and updates between the calls."""
    from hfdsl.rl.models import captured_generation

    monkeypatch.setattr(captured_generation, "SPAN", 4)
    monkeypatch.setattr(captured_generation, "CHECK_EVERY", 2)
    plain, steps = (
        trained(engine, autocast=autocast, temperature=temperature, top_k=10, top_p=0.9)
        for engine in ("plain", "captured")
    )
    for expected, captured in zip(plain, steps, strict=True):
        for name in ("ids", "mask", "response_mask", "log_probs"):
            assert torch.equal(getattr(expected, name).tensor, getattr(captured, name).tensor), name
    assert len({tuple(expected.ids.tensor.flatten().tolist()) for expected in plain}) == len(plain)


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_samples_follow_the_seed(engine: str) -> None:
    first, again, reseeded = (generated(seed, engine=engine)[0].ids.tensor for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, reseeded)


@pytest.mark.parametrize("how", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}], ids=str)
def test_a_distribution_of_one_token_is_greedy(how: dict[str, Any]) -> None:
    sampled, greedy = generated(**how)
    assert torch.equal(sampled.ids.tensor, greedy.ids.tensor)


def test_log_probs_are_those_of_the_model() -> None:
    """Held against a plain forward pass of transformers, one row at a time and without padding."""
    from hfdsl.rl.models.loading import load

    rollout, model = generated(temperature=0.7)[0], load(tiny.MODEL)
    for ids, mask, response, log_probs in zip(
        rollout.ids.tensor, rollout.mask.tensor, rollout.response_mask.tensor, rollout.log_probs.tensor, strict=True
    ):
        count = int(response.sum())
        tokens = ids[mask]
        expected = (
            (model(tokens[None]).logits[0].double() / 0.7).log_softmax(-1)[:-1].gather(1, tokens[1:, None])[-count:, 0]
        )
        torch.testing.assert_close(log_probs[response], expected.float(), rtol=1e-4, atol=1e-5)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0.05, 1), st.integers(0, 6), st.floats(0, 0.999))
def test_sampling_inverts_the_truncated_distribution(
    logits: list[float], top_p: float, top_k: int, uniform: float
) -> None:
    row = torch.tensor(logits, dtype=torch.float64)
    likely = sorted(enumerate(row.softmax(0).tolist()), key=lambda pair: -pair[1])[: top_k or None]
    mass, nucleus = sum(p for _, p in likely), dict[int, float]()
    for token, probability in likely:
        if not nucleus or sum(nucleus.values()) < top_p * mass - 1e-12:
            nucleus[token] = probability
    [token] = sample(row[None], torch.tensor([uniform], dtype=torch.float64), top_p, top_k).tolist()
    if abs(sum(nucleus.values()) - top_p * mass) > 1e-9:
        assert token in nucleus
        below = sum(p for t, p in nucleus.items() if t < token) / sum(nucleus.values())
        assert below - 1e-9 <= uniform <= below + nucleus[token] / sum(nucleus.values()) + 1e-9


def test_a_prompt_that_leaves_no_room_is_named() -> None:
    short = replace(tiny.MODEL, config={**tiny.LLAMA, "max_position_embeddings": tiny.RESPONSE + tiny.PROMPT - 1})
    plan = rollouts.compile(tiny.deployment(2, actor=replace(tiny.ACTOR, model=short)), SIZES)
    lengths = tiny.prompts(ROWS).mask.tensor.sum(1)
    assert int(lengths.max()) == tiny.PROMPT
    with plan.launch("local") as running, pytest.raises(RoleError) as error:
        running.step(tiny.prompts(ROWS))
    assert error.value.code == "HF811"
    first = int((lengths == tiny.PROMPT).nonzero()[0])
    where = f"'actor.generate#1' on rank {first // 4} in step 0: row {first}: "
    message = f"HF811: {where}its prompt has 5 tokens; with 6 for a response, that is more than"
    assert str(error.value).startswith(message)


def test_captured_steps_are_given_up_with_the_weights() -> None:
    actor = w.Actor(replace(tiny.ACTOR, generation=replace(tiny.GENERATION, engine="captured")))
    captured, prompts = actor.sampling.captured, tiny.prompts(ROWS)
    assert captured is not None
    before = actor.generate(prompts, greedy=True)
    actor.offload("optimizer")
    assert captured._batches
    actor.offload("weights")
    assert not captured._batches
    actor.onload("weights")
    assert torch.equal(actor.generate(prompts, greedy=True).ids.tensor, before.ids.tensor)


def test_a_model_whose_steps_cannot_be_captured_is_reported() -> None:
    sliding = {**tiny.LLAMA, "model_type": "gemma2", "head_dim": 8, "query_pre_attn_scalar": 8}
    config = replace(tiny.ACTOR, model=w.ModelConfig(config=sliding))
    assert w.Actor(config).sampling.captured is None
    with pytest.raises(ResourceError) as error:
        w.Actor(replace(config, generation=replace(tiny.GENERATION, engine="captured")))
    assert str(error.value) == (
        'HF812: engine="captured" cannot sample here: not all layers of Gemma2ForCausalLM attend to all tokens; '
        'engine="plain" can'
    )
