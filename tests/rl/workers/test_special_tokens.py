"""The tokens that end and fill responses: of a configuration, of a model's files, and what a check reads of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from hfdsl.errors import ResourceError
from hfdsl.rl import workers as w
from hfdsl.rl.models.loading import end_tokens, load, pad_token
from hfdsl.rl.workers.special_tokens import NO_PAD, lacks_pad, own_token
from tests.rl.workers import tiny

SIZES: dict[str, Any] = {**tiny.LLAMA, "vocab_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    load(w.ModelConfig(config={"model_type": "llama", **SIZES, "eos_token_id": 2})).save_pretrained(path)
    return path


@pytest.mark.parametrize("name", sorted(NO_PAD))
def test_these_models_have_no_pad_token_of_their_own(name: str) -> None:
    assert AutoConfig.for_model(name).pad_token_id is None


tokens = st.integers(0, 15)
special = st.fixed_dictionaries(
    {}, optional={"eos_token_id": st.none() | tokens | st.lists(tokens, min_size=1), "pad_token_id": st.none() | tokens}
)


@settings(max_examples=25, deadline=None)
@given(generation=st.none() | special, saved=special, changed=special)
def test_a_check_reads_the_tokens_that_a_loaded_model_takes(
    folder: Path, generation: dict[str, Any] | None, saved: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Those of ``generation_config.json`` come before those of ``config.json``; what a run overrides before both."""
    config, own = folder / "config.json", folder / "generation_config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "eos_token_id": None, "pad_token_id": None, **saved}))
    own.unlink(missing_ok=True)
    if generation is not None:
        own.write_text(json.dumps(generation))
    model = w.ModelConfig(path=str(folder), config=changed or None)
    loaded = load(model)

    ends = own_token(model, "eos_token_id")
    assert end_tokens(model, loaded) == (() if ends is None else (ends,) if isinstance(ends, int) else tuple(ends))
    if lacks_pad(model):
        with pytest.raises(ResourceError, match=r"HF812: the model .* has no pad token"):
            pad_token(model, loaded)
    else:
        assert pad_token(model, loaded) == own_token(model, "pad_token_id")


def test_a_chat_model_ends_a_response_where_it_ends_a_turn(tmp_path: Path) -> None:
    """Its ``config.json`` may have the end of a text alone, and its ``generation_config.json`` that of a turn, too."""
    load(w.ModelConfig(config={"model_type": "llama", **SIZES, "eos_token_id": 2})).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2], "pad_token_id": 2}))
    model = w.ModelConfig(path=str(tmp_path))
    loaded = load(model)
    assert (end_tokens(model, loaded), pad_token(model, loaded)) == ((5, 2), 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pad_token": 16}, "HF812: pad_token names the token 16, and the model has the tokens 0 to 15"),
        ({"end_tokens": (1, 99)}, "HF812: end_tokens names the token 99, and the model has the tokens 0 to 15"),
    ],
)
def test_a_token_that_a_model_lacks_is_refused(config: dict[str, Any], message: str) -> None:
    model = w.ModelConfig(config={"model_type": "llama", **SIZES, "pad_token_id": 0}, **config)
    loaded = load(model)
    with pytest.raises(ResourceError, match=message):
        (end_tokens(model, loaded), pad_token(model, loaded))


def test_an_attention_that_transformers_lacks_is_refused_by_the_name_of_its_field() -> None:
    model = w.ModelConfig(config={"model_type": "llama", **SIZES}, attention="flash_atention")
    with pytest.raises(
        ResourceError, match=r"HF812: ModelConfig\(attention='flash_atention'\): the model 'llama' cannot use"
    ):
        load(model)
