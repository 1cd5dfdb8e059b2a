"""Adapters that a model cannot have, and values that no adapter has; none of it needs peft."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hfdsl.errors import ConfigError, ResourceError
from hfdsl.rl import workers as w
from hfdsl.rl.models import adapters
from hfdsl.rl.models.loading import load
from tests.rl.workers import tiny

LORA = w.Lora(rank=4)
ACTOR = replace(tiny.ACTOR, lora=LORA)


@pytest.mark.parametrize(
    ("lora", "config", "message"),
    [
        (replace(LORA, targets=("query_proj",)), tiny.LLAMA, "no linear layer 'query_proj'; did you mean 'q_proj'?"),
        (replace(LORA, targets=("embed_tokens",)), tiny.LLAMA, "'embed_tokens'; it has down_proj, gate_proj, k_proj, "),
        (
            replace(LORA, rank=17),
            tiny.LLAMA,
            "rank = 17 is more than 'model.layers.0.self_attn.k_proj' can use, whose weight is 16 x 32",
        ),
        (replace(LORA, targets=("lm_head",)), {**tiny.LLAMA, "tie_word_embeddings": True}, "tied to the embedding"),
    ],
)
def test_an_adapter_that_the_model_cannot_have_is_refused(lora: w.Lora, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ResourceError, match="HF962") as error:
        adapters.targeted_layers(load(w.ModelConfig(config=config)), lora)
    assert message in str(error.value)


def test_a_critic_has_no_output_layer_to_adapt() -> None:
    with pytest.raises(ResourceError, match=r"HF962.*no linear layer 'lm_head'"):
        adapters.targeted_layers(load(tiny.MODEL).base_model, replace(LORA, targets=("lm_head",)))


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"HF710.*peft.*pip install 'hfdsl\[lora\]'"):
        w.Actor(ACTOR)


@pytest.mark.parametrize(
    "values", [{"rank": 0}, {"rank": 1.5}, {"alpha": 0}, {"dropout": 1}, {"targets": "q_proj"}, {"targets": ()},
               {"targets": ("",)}, {"alpha": math.nan}]
)  # fmt: skip  # a list
def test_values_that_no_adapter_has_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="HF940"):
        w.Lora(**values)


@pytest.mark.parametrize(
    ("targets", "count"), [("all-linear", 14), (("q_proj",), 2), (("layers.0.mlp.up_proj", "1.self_attn.q_proj"), 2)]
)
def test_targets_are_the_ends_of_names(targets: Any, count: int) -> None:
    layers = adapters.targeted_layers(load(tiny.MODEL), replace(LORA, targets=targets))
    assert len(layers) == count
    assert all(targets == "all-linear" or path.endswith(targets) for path in layers)
    assert "lm_head" not in layers


def test_an_actor_without_an_adapter_is_no_reference() -> None:
    with pytest.raises(ResourceError, match="HF812: base_log_probs leaves out an adapter, and lora is not set"):
        w.Actor(tiny.ACTOR).base_log_probs(tiny.demonstrations(2))
