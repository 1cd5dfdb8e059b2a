"""Folders of models and tokenizers that a configuration names: what they hold, and whether it fits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.rl.training.preflight_runs import CONFIG, LFS, MODEL, SAVED, SIZED, findings, line, only, project, saved
from tests.tools.test_fixing_config import RUN

__all__ = ["project"]  # a fixture for all tests here


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "there is no model in 'models/a': no config.json in it"),
        ({"config__json": CONFIG}, "there are no weights in 'models/a'"),
        ({"config__json": CONFIG, "model__safetensors": LFS}, "'models/a/model.safetensors' is a Git LFS pointer"),
        ({"config__json": CONFIG, "pytorch_model__bin": LFS}, "'models/a/pytorch_model.bin' is a Git LFS pointer"),
        (
            {
                "config__json": CONFIG,
                "model-1-of-2__safetensors": b"weights",
                "model__safetensors__index__json": json.dumps(
                    {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
                ).encode(),
            },
            "'models/a' has 1 of the 2 files of weights that its index names: model-2-of-2.safetensors is missing",
        ),
        (
            {"config__json": CONFIG.replace(b"11", b"8"), "model__safetensors": b"weights"},
            "the tokenizer has 11 tokens, and the model of 'actor' has vocab_size = 8",
        ),
    ],
)
def test_folders_without_a_model_that_fits(files: dict[str, bytes], problem: str) -> None:
    text = saved("models/a", **files)
    code, place, message = only(text)
    assert (code[:3], place, problem in message) == ("HF8" if code == "HF812" else "HF9", line(text, "model ="), True)


def test_a_saved_policy_needs_a_pad_token() -> None:
    config = json.dumps({name: value for name, value in SAVED.items() if name != "pad_token_id"}).encode()
    text = saved("models/a", config__json=config, model__safetensors=b"weights")
    problem = "the model 'models/a' has no pad token, and responses of different lengths need one"
    assert only(text)[2] == f"'actor': {problem}"
    Path("models/a/generation_config.json").write_text('{"pad_token_id": 0}')
    assert findings(text) == []


def test_a_model_in_a_folder_is_not_blamed() -> None:
    assert findings(saved("models/a", config__json=CONFIG, model__safetensors=b"weights")) == []
    index = json.dumps({"weight_map": {"a": "one.safetensors"}}).encode()
    files = {"config__json": CONFIG, "one__safetensors": b"weights", "model__safetensors__index__json": index}
    files["pytorch_model__bin__index__json"] = index.replace(b"one.safetensors", b"one.bin")  # the other format
    assert findings(saved("models/b", **files)) == []


@pytest.mark.parametrize(
    ("shape", "changes", "is_blamed"),
    [
        ([8, 16], {}, False),
        ([16, 16], {}, True),
        ([16, 16], {"num_key_value_heads": 2}, False),
        ([16, 16], {"model_type": "starcoder2"}, False),
        ([64, 1], {"quantization_config": {"load_in_4bit": True}}, False),
    ],
)
def test_files_have_the_shapes_of_the_configuration(shape: list[int], changes: dict[str, Any], is_blamed: bool) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    config = json.dumps({**json.loads(CONFIG), **SIZED, **changes}).encode()
    text = saved("models/a", config__json=config, model__safetensors=len(header).to_bytes(8, "little") + header)
    says = f"the files of the model of 'actor' have '{name}' of shape (16, 16), but its configuration has (8, 16)"
    wanted = [("HF964", line(text, "model ="), says)] if is_blamed else []
    assert [(finding.code, finding.primary.span.line, finding.message) for finding in findings(text)] == wanted


@pytest.mark.parametrize(
    ("name", "is_blamed"),
    [("score.weight", False), ("model.score.weight", False), ("lm_head.weight", True), ("", False)],
)
def test_the_files_of_a_reward_model_have_its_head(name: str, is_blamed: bool) -> None:
    """Files that cannot be read are another mistake."""
    header = json.dumps({name: {"dtype": "F32", "shape": [1, 16], "data_offsets": [0, 0]}}).encode() if name else b"?"
    saved("models/a", config__json=CONFIG, model__safetensors=len(header).to_bytes(8, "little") + header)
    text = RUN.replace("hfdsl.rl.workers:Verifier", "hfdsl.rl.workers:RewardModel")
    reward = text[text.index("[reward]") :].partition("\n\n")[0]
    text = text.replace(reward, '[reward]\nmodel = { path = "models/a" }')
    says = "'reward' gives every response the same score: the files of 'models/a' have no 'score.weight', so its score"
    blamed = [finding for finding in findings(text) if finding.code == "HF967"]
    assert [finding.message[: len(says)] for finding in blamed] == [says] * is_blamed


@pytest.mark.parametrize(
    ("eos", "ends", "missed"),
    [
        ("</s>", None, ("the tokenizer", 2)),
        ({"content": "</s>"}, None, ("the tokenizer", 2)),
        ("b", None, ("the tokenizer", 4)),
        ("<end>", None, None),
        ("</s>", [2, 1], None),
        ("</s>", [2], None),
        ("</s>", [3], ("its model", 1)),
        (None, None, None),
        ("unknown", None, None),
    ],
)
def test_the_end_token_of_a_saved_tokenizer_ends_responses(
    eos: Any, ends: list[int] | None, missed: tuple[str, int] | None
) -> None:
    Path("tokenizer").mkdir()
    added = [{"id": 1, "content": "<end>"}, {"id": 2, "content": "</s>"}]
    words = {"model": {"vocab": {"a": 3, "b": 4}}, "added_tokens": added}
    Path("tokenizer/tokenizer.json").write_text(json.dumps(words))
    Path("tokenizer/tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    Path("saved").mkdir()
    Path("saved/config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    text = re.sub(r"tokenizer = \{.*", 'tokenizer = { kind = "Pretrained", path = "tokenizer" }', RUN, count=1)
    chosen = "" if ends is None else f"end_tokens = {ends}\n"
    text = text.replace(MODEL, f'[actor.model]\npath = "saved"\n{chosen}\n')
    about_ends = [found for found in findings(text, elsewhere=True) if found.code == "HF909"]
    named = [re.search(r"after token (\d+), with which (.*) ends a text", found.message) for found in about_ends]
    assert [(match[2], int(match[1])) for match in named if match] == ([] if missed is None else [missed])


@pytest.mark.parametrize("key", ["rope_theta", "head_dim", "torch_dtype", "output_attentions", "my_own_note"])
def test_keys_that_a_model_may_have_are_not_blamed(key: str) -> None:
    assert findings(RUN.replace("hidden_size = 16\n", f"hidden_size = 16\n{key} = 1\n")) == []


def test_a_key_of_an_unknown_type_of_model_is_not_blamed() -> None:
    assert findings(RUN.replace('"qwen2"', '"nobody_knows"').replace("hidden_size", "hiden_size")) == []
