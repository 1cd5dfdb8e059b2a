# mypy: disable-error-code="empty-body"
"""Copies of a policy whose weights fit, and whose model is another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    GenerationConfig,
    InFlightSampler,
    Lora,
    ModelConfig,
    Sampler,
    SamplerConfig,
)

SIZES: dict[str, Any] = {"model_type": "llama", "pad_token_id": 0, "vocab_size": 32, "hidden_size": 16}
SIZES |= {"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"eos_token_id": 1}
GENERATION = GenerationConfig(max_tokens=2)
ADAPTER = Lora(rank=2, alpha=4, exports="adapter")


@hf.dataflow
def ready(prompts: Prompts, actor: Actor, sampler: Sampler) -> Rollout:
    rollout = sampler.generate(prompts)
    hf.sync(actor, sampler)
    return rollout


def model(**changes: Any) -> ModelConfig:
    return ModelConfig(config={**SIZES, **changes})


def problems(learned: ModelConfig, sampled: Any, role: Any = Sampler, **loras: Any) -> list[str]:
    """What the check says of the model of a copy, and of its adapter."""
    actor = ActorConfig(learned, GENERATION, lora=loras.get("actor"))
    if isinstance(sampled, ModelConfig):
        sampled = SamplerConfig(sampled, GENERATION, lora=loras.get("sampler"))
    deployment = hf.Deployment(
        actor=hf.place(Actor, actor, pool=hf.ResourcePool([1], name="train")),
        sampler=hf.place(role, sampled, pool=hf.ResourcePool([1], name="engines")),
    )
    findings = [finding for finding in ready.check(deployment) if finding.code in ("HF960", "HF963")]
    return [f"{finding.code}: {finding.message.rpartition(': ')[2]}" for finding in findings]


@pytest.mark.parametrize(
    ("learned", "sampled", "expected"),
    [
        ({}, {}, None),
        ({}, {"rope_theta": 5e5}, "HF960: rope_theta = 500000.0 (10000.0 in 'actor')"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rope_theta": 5e5}, None),
        ({"rope_parameters": {"rope_theta": 5e5}}, {}, "HF960: rope_theta = 10000.0 (500000.0 in 'actor')"),
        ({}, {"rope_scaling": {"type": "linear", "factor": 2}}, "HF960: rope_type = 'linear' ('default' in 'actor')"),
        ({"rms_norm_eps": 1e-5}, {}, "HF960: rms_norm_eps = 1e-06 (1e-05 in 'actor')"),
        ({"hidden_act": "gelu"}, {"hidden_act": "gelu"}, None),
        ({}, {"eos_token_id": [1]}, None),
        ({}, {"eos_token_id": 2}, "HF960: eos_token_id = 2 (1 in 'actor')"),
        ({}, {"max_position_embeddings": 99}, None),
        ({}, {"tie_word_embeddings": True}, "HF960: tie_word_embeddings = True (False in 'actor')"),
        ({"tie_word_embeddings": True}, {}, None),  # it sends the embedding under both names
    ],
    ids=str,
)
def test_the_model_of_a_copy(learned: dict[str, Any], sampled: dict[str, Any], expected: str | None) -> None:
    assert problems(model(**learned), model(**sampled)) == ([] if expected is None else [expected])


def test_what_is_not_stated_may_be_anything() -> None:
    unknown = {"model_type": "opt"}
    assert problems(model(**unknown), model(**unknown, rope_theta=5e5)) == []
    assert problems(model(), ModelConfig(path="elsewhere")) == []
    assert problems(model(), replace(model(eos_token_id=2), end_tokens=(1, 2))) == []


@pytest.mark.parametrize(
    ("learned", "sampled", "changes", "expected"),
    [
        (ADAPTER, ADAPTER, {}, None),
        (ADAPTER, replace(ADAPTER, alpha=8), {}, "HF963: lora.alpha = 8 (4 in 'actor')"),
        (
            replace(ADAPTER, targets=("q_proj", "v_proj")),  # its v_proj would be left out of the copy
            replace(ADAPTER, targets=("q_proj",)),
            {},
            "HF963: lora.targets = ['q_proj'] (['q_proj', 'v_proj'] in 'actor')",
        ),
        (replace(ADAPTER, targets=("q_proj", "v_proj")), replace(ADAPTER, targets=("v_proj", "q_proj")), {}, None),
        (ADAPTER, replace(ADAPTER, exports="merged"), {}, None),  # a sampler exports nothing
        (ADAPTER, ADAPTER, {"seed": 5}, "HF963: model.seed = 5 (0 in 'actor')"),
        (replace(ADAPTER, exports="merged"), None, {"seed": 5}, None),
    ],
)
def test_the_adapter_of_a_copy(learned: Lora, sampled: Lora, changes: dict[str, Any], expected: str | None) -> None:
    found = problems(model(), replace(model(), **changes), actor=learned, sampler=sampled)
    assert found == ([] if expected is None else [expected])


def test_a_class_that_builds_another_model_states_nothing() -> None:
    class Same(Sampler): ...

    class Own(Sampler):
        def __init__(self, config: SamplerConfig) -> None:
            super().__init__(replace(config, model=model()))

    other = model(rope_theta=5e5)
    assert problems(model(), other, Own) == []
    for role in (Same, InFlightSampler):
        assert problems(model(), other, role) == ["HF960: rope_theta = 500000.0 (10000.0 in 'actor')"]
