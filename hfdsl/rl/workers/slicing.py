"""What a model's configuration says before the model is made, and which of it tensor parallelism slices."""

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
"""Models whose attention is cut by heads, as transformers plans it; others tell what they need when they are made."""

HEADS, WIDTHS = ("num_attention_heads", "num_key_value_heads"), ("intermediate_size",)


class WithModel(Protocol):
    """The configuration of a role that has a model."""

    @property
    def model(self) -> ModelConfig:
        """The model."""
        ...


def model_config(model: ModelConfig) -> dict[str, Any]:
    """What a model's configuration says, in its folder or here.

    >>> model_config(ModelConfig(config={"model_type": "llama", "num_attention_heads": 14}))["num_attention_heads"]
    14
    """
    file = Path(model.path or "") / "config.json"
    saved = json.loads(file.read_text("utf-8")) if model.path is not None and file.is_file() else {}
    return {**saved, **(model.config or {})}


def sliced(config: WithModel) -> dict[str, int]:
    """The sizes of a role's model that its ``tp`` has to divide, as far as its configuration tells.

    >>> from hfdsl.rl.workers import ReferenceConfig
    >>> sliced(ReferenceConfig(ModelConfig(config={"model_type": "llama", "num_attention_heads": 14})))
    {'num_attention_heads': 14}
    """
    says = model_config(config.model)
    names = (*HEADS, *WIDTHS) if says.get("model_type") in BY_HEADS else WIDTHS
    return {name: says[name] for name in names if isinstance(says.get(name), int)}
