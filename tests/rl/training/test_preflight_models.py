"""Sizes and types of models of which transformers makes none, found before a launch does."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import load
from hfdsl.rl.training.preflight.architecture import default_tokens
from hfdsl.rl.workers.slicing import BY_HEADS
from tests.rl.training.preflight_runs import SIZED, findings, line, only, project, saved
from tests.tools.test_fixing_config import RUN

__all__ = ["project"]  # a fixture for all tests here


def build_and_call(values: dict[str, Any]) -> None:
    """Make a model of a configuration, and call it."""
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    model(torch.zeros(1, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", '"quen2"', "transformers has no model of the type 'quen2'; did you mean 'qwen2'?"),
        ("vocab_size", '"many"', "the 'vocab_size' of a 'qwen2' model is a whole number, got 'many'"),
        (
            "max_position_embeddings",
            "16.0",
            "the 'max_position_embeddings' of a 'qwen2' model is a whole number, got 1",
        ),
        ("hidden_size", "0", "the 'hidden_size' of a 'qwen2' model is at least 1, got 0"),
        ("num_hidden_layers", "-1", "the 'num_hidden_layers' of a 'qwen2' model is at least 0, got -1"),
        ("num_key_value_heads", "3", "each key-value head of a 'qwen2' model serves as many attention heads, so num"),
    ],
)
def test_values_of_which_transformers_makes_no_model(key: str, value: str, message: str) -> None:
    text = re.sub(rf"^{key} = .*$", f"{key} = {value}", RUN, flags=re.MULTILINE)
    code, place, found = only(text)
    assert (code, place) == ("HF812", line(text, f"{key} = "))
    assert found.startswith(message)
    values = tomllib.loads(text)["actor"]["model"]["config"]
    with pytest.raises(Exception):  # noqa: B017, PT011  # errors of transformers and torch, of many kinds
        build_and_call(values)


@pytest.mark.parametrize("model_type", sorted(BY_HEADS))
def test_the_end_of_a_type_of_model_is_that_of_transformers(model_type: str) -> None:
    assert default_tokens(model_type, "eos_token_id") in ((), (AutoConfig.for_model(model_type).eos_token_id,))


@pytest.mark.parametrize(("model_type", "known"), [("llama", (2,)), ("qwen2", (None,)), ("glm", ()), ("nobody", ())])
def test_some_types_of_models_state_their_end(model_type: str, known: tuple[int | None, ...]) -> None:
    assert default_tokens(model_type, "eos_token_id") == known


def test_responses_of_a_model_that_has_no_end_token_never_end() -> None:
    Path("run.toml").write_text(RUN)
    run = load("run.toml", ["actor.model.config.eos_token_id=none"])
    for elsewhere in (False, True):
        [finding] = ConfigCheck(elsewhere=elsewhere).reports(run)[0].findings
        assert (finding.code, "'actor' continues after token 1" in finding.message) == ("HF909", True)


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_responses_of_a_model_without_the_end_of_the_tokenizer_never_end(model_type: str) -> None:
    text = RUN.replace("eos_token_id = 1\n", "").replace('"qwen2"', f'"{model_type}"')
    [finding] = findings(text)
    assert (finding.code, finding.primary.span.line) == ("HF909", line(text, "[actor.model.config]"))
    assert finding.message.startswith("'actor' continues after token 1, with which the tokenizer ends a text")
    assert [fix.title for fix in finding.fixes] == ["set actor.model.end_tokens to [1]"]
    assert findings(text, elsewhere=True) == []  # which may have another version of transformers
    assert findings(text.replace("[actor.model.config]", "[actor.model]\nend_tokens = [1]\n[actor.model.config]")) == []


def test_the_heads_of_a_llama_divide_its_width() -> None:
    text = RUN.replace('"qwen2"', '"llama"').replace("hidden_size = 16", "hidden_size = 17")
    code, place, message = only(text)
    assert (code, place) == ("HF812", line(text, "hidden_size = "))
    assert message == "the hidden_size of a 'llama' model is a multiple of its num_attention_heads, got 17 and 2"
    assert findings(text.replace("hidden_size = 17", "hidden_size = 18")) == []
    assert findings(text.replace('"llama"', '"qwen2"')) == []  # which may have any width
    build_and_call(tomllib.loads(text.replace('"llama"', '"qwen2"'))["actor"]["model"]["config"])


def test_heads_beside_those_of_a_folder_are_judged_together() -> None:
    config = json.dumps({"model_type": "qwen2", **SIZED, "num_attention_heads": 4, "pad_token_id": 0}).encode()
    text = saved("models/a", config__json=config, model__safetensors=b"weights")
    text = text.replace('path = "models/a"', 'path = "models/a", config = { num_key_value_heads = 3 }')
    [finding] = [finding for finding in findings(text) if finding.message.startswith("each key-value head")]
    assert finding.primary.span.line == line(text, "num_key_value_heads")
