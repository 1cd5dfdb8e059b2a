"""The settings that a copy of a policy shares with it, since weights do not carry them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hfdsl.rl.workers.config import SamplerConfig
from hfdsl.rl.workers.linear_layers import KNOWN
from hfdsl.rl.workers.slicing import WithModel, model_config

SAME: Final = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_type",
    "tie_word_embeddings",
    "eos_token_id",
)
"""The fields of a model's configuration that a copy must share."""

DEFAULTS: Final[Mapping[str, object]] = MappingProxyType(
    {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "rope_type": "default",
        "tie_word_embeddings": False,
    }
)
"""Those that the known model types have if a configuration leaves them out."""

ROPE: Final = ("rope_parameters", "rope_scaling")
"""The fields with the settings of rotary embeddings: of transformers 5, and of former versions."""


def copied_settings(config: WithModel) -> dict[str, object]:
    """The settings of a model that its copies share, by name, as far as its configuration says them.

    >>> from hfdsl.rl.workers import ReferenceConfig
    >>> from hfdsl.rl.workers.config import ModelConfig
    >>> settings = copied_settings(ReferenceConfig(ModelConfig(config={"model_type": "llama", "rope_theta": 5e5})))
    >>> settings["rope_theta"], settings["tie_word_embeddings"], "head_dim" in settings
    (500000.0, False, False)
    """
    values = model_config(config.model)
    rotary: Mapping[str, object] = next((values[name] for name in ROPE if isinstance(values.get(name), Mapping)), {})
    former = {"rope_type": rotary.get("type")} if "type" in rotary else {}
    defaults: Mapping[str, object] = DEFAULTS if values.get("model_type") in KNOWN else {}
    known = {**defaults, **{name: value for name, value in {**values, **former, **rotary}.items() if value is not None}}
    if config.model.end_tokens is not None:
        known.pop("eos_token_id", None)
    return {name: known[name] for name in SAME if name in known}


def adapter_settings(config: WithModel) -> dict[str, object]:
    """The settings that copies of an adapter share where it is sent alone: its factor and targets, and its model.

    >>> from hfdsl.rl.workers import GenerationConfig
    >>> from hfdsl.rl.workers.config import ModelConfig
    >>> from hfdsl.rl.workers.lora import Lora
    >>> adapter_settings(SamplerConfig(ModelConfig(path="base"), GenerationConfig(8), lora=Lora(alpha=8)))
    {'lora.alpha': 8, 'lora.targets': 'all-linear', 'model.path': 'base'}
    """
    lora, model = getattr(config, "lora", None), config.model
    if lora is None or not (lora.exports == "adapter" or isinstance(config, SamplerConfig)):
        return {}
    base: dict[str, object] = {"model.path": model.path} if model.path is not None else {"model.seed": model.seed}
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    return {"lora.alpha": lora.alpha, "lora.targets": targets, **base}
