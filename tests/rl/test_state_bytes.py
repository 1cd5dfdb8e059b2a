"""The bytes of exported weights, known before a model is loaded, against those of the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hfdsl.rl.workers import Actor, ActorConfig, GenerationConfig
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.model_config import FloatDType
from hfdsl.rl.workers.state_bytes import state_bytes

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXTRAS: list[dict[str, Any]] = [{}, {"head_dim": 8}, {"attention_bias": True}, {"mlp_bias": True}]
ANY_HEAD = ["llama", "mistral", "qwen2"]


def built(values: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))


def exported_bytes(model: Any) -> int:
    return sum(weight.nbytes for weight in model.state_dict().values())


def of(model: ModelConfig) -> dict[str, int]:
    return state_bytes(ActorConfig(model, GenerationConfig(max_tokens=2)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("kind", [*ANY_HEAD, "qwen3"])
def test_a_configuration_with_all_sizes_has_the_bytes_of_its_model(
    kind: str, extra: dict[str, Any], tied: bool
) -> None:
    head = {"head_dim": 8} if kind == "qwen3" else {}
    values = {"model_type": kind, **SIZES, **head, **extra, "tie_word_embeddings": tied}
    assert of(ModelConfig(config=values)) == {"policy": exported_bytes(built(values))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_are_those_that_an_actor_exports(dtype: FloatDType) -> None:
    model = ModelConfig(config={"model_type": "llama", **SIZES, "pad_token_id": 0, "eos_token_id": 1}, dtype=dtype)
    config = ActorConfig(model, GenerationConfig(max_tokens=2))
    weights = Actor(config).weights()
    assert Actor.state_bytes(config) == {"policy": sum(weight.nbytes for weight in weights.values())}


@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_model_has_the_bytes_of_its_files(tmp_path: Path, tied: bool) -> None:
    values: dict[str, Any] = {"model_type": "gpt_neox", **SIZES, "tie_word_embeddings": tied}
    values = values if not tied else {**values, "model_type": "gemma", "head_dim": 8}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    model.save_pretrained(tmp_path)
    assert of(ModelConfig(path=str(tmp_path))) == {"policy": exported_bytes(model)}


@pytest.mark.parametrize("lacking", [*SIZES, "model_type"])
def test_what_a_configuration_leaves_to_defaults_is_not_guessed(lacking: str) -> None:
    values = {"model_type": "qwen2", **SIZES}
    del values[lacking]
    assert of(ModelConfig(config=values)) == {}


def test_a_model_of_another_type_has_no_known_size() -> None:
    assert of(ModelConfig(config={"model_type": "opt", **SIZES})) == {}
