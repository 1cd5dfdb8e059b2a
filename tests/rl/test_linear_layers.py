"""The linear layers that a configuration says a model has, against those of the model itself."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.linear_layers import KNOWN, adapter_parameters, linear_layers
from hfdsl.rl.workers.lora import Lora
from tests.rl.test_state_bytes import EXTRAS, SIZES, built


@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("kind", KNOWN)
def test_a_configuration_has_the_linear_layers_of_its_model(kind: str, extra: dict[str, Any]) -> None:
    head = {"head_dim": 8} if kind == "qwen3" else {}
    values = {"model_type": kind, **SIZES, **head, **extra}
    modules = {
        path: module
        for path, module in built(values).named_modules()
        if isinstance(module, nn.Linear) and path != "lm_head"
    }
    model = ModelConfig(config=values)
    assert linear_layers(model) == {path: (module.out_features, module.in_features) for path, module in modules.items()}
    sides = [module.in_features + module.out_features for path, module in modules.items() if path.endswith("k_proj")]
    assert adapter_parameters(model, Lora(rank=3, targets=("k_proj",))) == 3 * sum(sides)


@pytest.mark.parametrize("missing", ["hidden_size", "num_key_value_heads", "num_hidden_layers", "model_type"])
def test_nothing_is_said_where_a_size_is_unknown(missing: str) -> None:
    values = {"model_type": "llama", **SIZES}
    del values[missing]
    model = ModelConfig(config=values)
    assert linear_layers(model) is None
    assert adapter_parameters(model, Lora()) is None
