"""The configuration of a model, read before the model is loaded, and the sizes in it that tensor parallelism slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Protocol

from hfdsl.rl.workers.config import ModelConfig

BY_HEADS: Final = frozenset(
    (
        "cohere", "cohere2", "ernie4_5", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_neox", "granite",
        "helium", "llama", "ministral", "mistral", "nemotron", "olmo", "phi", "qwen2", "qwen3", "smollm3", "starcoder2",
    )
)  # fmt: skip  # a list of names
"""Model types whose attention transformers slices by heads; others are checked when they are loaded."""

HEADS, WIDTHS = ("num_attention_heads", "num_key_value_heads"), ("intermediate_size",)


class WithModel(Protocol):
    """The configuration of a role that has a model."""

    @property
    def model(self) -> ModelConfig:
        """The model."""
        ...


def model_config(model: ModelConfig) -> dict[str, Any]:
    """The values of a model's configuration: those of its folder, overridden by ``config``.

    >>> model_config(ModelConfig(config={"model_type": "llama", "num_attention_heads": 14}))["num_attention_heads"]
    14
    """
    file = Path(model.path or "") / "config.json"
    saved = json.loads(file.read_text("utf-8")) if model.path is not None and file.is_file() else {}
    return {**saved, **(model.config or {})}


def sliced(config: WithModel) -> dict[str, int]:
    """The sizes of a role's model that its ``tp`` has to divide, where the configuration has them.

    >>> from hfdsl.rl.workers import ReferenceConfig
    >>> sliced(ReferenceConfig(ModelConfig(config={"model_type": "llama", "num_attention_heads": 14})))
    {'num_attention_heads': 14}
    """
    values = model_config(config.model)
    names = (*HEADS, *WIDTHS) if values.get("model_type") in BY_HEADS else WIDTHS
    return {name: values[name] for name in names if isinstance(values.get(name), int)}
