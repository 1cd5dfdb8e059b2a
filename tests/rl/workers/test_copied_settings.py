"""The settings that a copy of a model shares, against those of transformers."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from hfdsl.rl.workers import ReferenceConfig
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.copied_settings import DEFAULTS, copied_settings
from hfdsl.rl.workers.linear_layers import KNOWN


@pytest.mark.parametrize("kind", KNOWN)
def test_a_known_model_has_the_defaults_of_its_configuration(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    written = copied_settings(ReferenceConfig(ModelConfig(config=config.to_dict())))
    assert {name: written[name] for name in DEFAULTS} == DEFAULTS
    left_out = {name: value for name, value in config.to_dict().items() if name == "model_type"}
    assert copied_settings(ReferenceConfig(ModelConfig(config=left_out))) == {"model_type": kind, **DEFAULTS}
