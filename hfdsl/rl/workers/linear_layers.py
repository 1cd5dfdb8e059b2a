"""The linear layers of a model, read from its configuration before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.lora import Lora, matches
from hfdsl.rl.workers.slicing import model_config

KNOWN: Final = ("llama", "mistral", "qwen2", "qwen3")
"""The model types whose linear layers are known; the names of the layers are the same in all of them."""


def linear_layers(model: ModelConfig) -> dict[str, tuple[int, int]] | None:
    """The outputs and inputs of every linear layer but the output layer; None if the configuration lacks a size.

    >>> sizes = {"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1}
    >>> sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    >>> layers = linear_layers(ModelConfig(config={"model_type": "llama", **sizes}))
    >>> layers["model.layers.0.self_attn.k_proj"], layers["model.layers.0.mlp.down_proj"], len(layers)
    ((2, 4), (4, 6), 7)
    """
    values = model_config(model)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = [values.get(name) for name in names]
    if values.get("model_type") not in KNOWN or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    width, inner, layers, heads, key_heads = (int(size or 0) for size in sizes)
    head = _head_width(values, width, heads)
    if head is None:
        return None
    layer = {
        "self_attn.q_proj": (heads * head, width),
        "self_attn.k_proj": (key_heads * head, width),
        "self_attn.v_proj": (key_heads * head, width),
        "self_attn.o_proj": (width, heads * head),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    return {f"model.layers.{i}.{name}": sides for i in range(layers) for name, sides in layer.items()}


def _head_width(values: Mapping[str, Any], width: int, heads: int) -> int | None:
    head = values.get("head_dim")
    if isinstance(head, int):
        return head
    return None if values["model_type"] == "qwen3" else width // heads  # its default differs between versions


def adapter_parameters(model: ModelConfig, lora: Lora) -> int | None:
    """The number of parameters in the matrices A and B of an adapter's targets; None if unknown.

    >>> sizes = {"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1}
    >>> sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    >>> adapter_parameters(ModelConfig(config={"model_type": "llama", **sizes}), Lora(rank=2, targets=("k_proj",)))
    12
    """
    layers = adapted_layers(model, lora)
    return None if layers is None else sum(lora.rank * sum(sides) for sides in layers.values())


def adapted_layers(model: ModelConfig, lora: Lora) -> dict[str, tuple[int, int]] | None:
    """The outputs and inputs of the layers that an adapter targets; None if the model's layers are not known."""
    layers, targets = linear_layers(model), targets_of(lora)
    if layers is None or any(matches("lm_head", target) for target in targets):
        return None
    return {
        path: sides
        for path, sides in layers.items()
        if lora.targets == "all-linear" or any(matches(path, target) for target in targets)
    }


def targets_of(lora: Lora) -> tuple[str, ...]:
    """The targets that an adapter names; none if it targets all linear layers."""
    return () if isinstance(lora.targets, str) else lora.targets
