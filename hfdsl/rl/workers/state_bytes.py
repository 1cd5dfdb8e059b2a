"""The bytes of the weights that a policy exports, read from its configuration or files before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final, Protocol

from hfdsl.rl.hub import local_folder
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.linear_layers import adapter_parameters
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.slicing import WithModel, model_config
from hfdsl.types.foreign_text import parse_object

ITEM_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}

SCORE_HEAD: Final = "score.weight"
"""The end of the name of a head that scores, in the files of a model."""

NEEDED: Final = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


class WithAdapter(WithModel, Protocol):
    """The configuration of a role whose model may have an adapter."""

    @property
    def lora(self) -> Lora | None:
        """The adapter."""
        ...


def state_bytes(config: WithAdapter) -> dict[str, int]:
    """The bytes of the state ``"policy"``, if the model's files or configuration determine its number of weights.

    For an actor that exports only its adapter, they are those of the adapter, in float32.

    >>> from hfdsl.rl.workers import ActorConfig, GenerationConfig
    >>> sizes = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 6}
    >>> sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    >>> model = ModelConfig(config={"model_type": "llama", **sizes})
    >>> state_bytes(ActorConfig(model, GenerationConfig(8)))
    {'policy': 784}
    >>> state_bytes(ActorConfig(model, GenerationConfig(8), lora=Lora(2, targets=("k_proj",), exports="adapter")))
    {'policy': 48}
    """
    if config.lora is not None and config.lora.exports == "adapter":
        adapter = adapter_parameters(config.model, config.lora)
        return {} if adapter is None else {"policy": 4 * adapter}
    weights = weight_count(config.model)
    return {} if weights is None else {"policy": weights * ITEM_BYTES[config.model.dtype]}


def weight_count(model: ModelConfig) -> int | None:
    """The number of weights that a model exports, tied ones once for each of their names; None if unknown."""
    counts = weight_counts(model)
    return None if counts is None else sum(counts)


def weight_counts(model: ModelConfig) -> tuple[int, int] | None:
    """The number of weights of a model's backbone, and of its output layer, also if it is tied; None if unknown."""
    values = model_config(model)
    shapes = saved_shapes(local_folder(model.path)) if model.path is not None and not model.config else {}
    if not shapes:
        return _llama_like(values)
    output = {name for name in shapes if name.startswith("lm_head")}
    embeddings = next((shape for name, shape in shapes.items() if name.endswith("embed_tokens.weight")), [])
    is_tied = bool(values.get("tie_word_embeddings")) and not output
    if is_tied and not embeddings:
        return None
    heads = {*output, *(name for name in shapes if name.endswith(SCORE_HEAD))}
    backbone = sum(prod(shape) for name, shape in shapes.items() if name not in heads)
    return backbone, prod(embeddings) if is_tied else sum(prod(shapes[name]) for name in output)


def saved_shapes(folder: Path) -> dict[str, list[int]]:
    """The shapes in the headers of a folder's safetensors files: a length of 8 bytes, then JSON of that length."""
    shapes: dict[str, list[int]] = {}
    for file in folder.glob("*.safetensors"):
        try:
            with file.open("rb") as opened:
                size = min(int.from_bytes(opened.read(8), "little"), file.stat().st_size)
                header = parse_object(opened.read(size))
            shapes |= {name: list(map(int, entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
        except (OSError, ValueError, KeyError, TypeError):  # loading the model reports it
            return {}
    return shapes


def _llama_like(values: Mapping[str, Any]) -> tuple[int, int] | None:
    """``weight_counts`` of a llama, mistral, qwen2 or qwen3 whose configuration has all sizes."""
    kind, key_heads, head_dim = (values.get(name) for name in ("model_type", "num_key_value_heads", "head_dim"))
    sizes = [values.get(name) for name in NEEDED]
    if kind not in ("llama", "mistral", "qwen2", "qwen3") or not all(isinstance(size, int) for size in sizes):
        return None
    vocabulary, width, inner, layers, heads = (int(size or 0) for size in sizes)
    if not isinstance(key_heads, int) or (kind == "qwen3" and not isinstance(head_dim, int)):
        return None  # the defaults differ between versions
    head = head_dim if isinstance(head_dim, int) else width // heads
    attention = 2 * width * head * heads + 2 * width * head * key_heads
    if kind == "qwen2" or (kind in ("llama", "qwen3") and values.get("attention_bias")):
        attention += head * (heads + 2 * key_heads) + (0 if kind == "qwen2" else width)
    mlp = 3 * width * inner + (2 * inner + width if kind == "llama" and values.get("mlp_bias") else 0)
    norms = 2 * width + (2 * head if kind == "qwen3" else 0)
    embeddings = vocabulary * width
    return embeddings + layers * (attention + mlp + norms) + width, embeddings
