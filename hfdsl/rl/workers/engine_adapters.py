"""LoRA adapters in a generation engine: apart from its weights, or merged into them.

vLLM computes with A and B apart from its weights. It supports adapters of the linear layers of a block, allocates them
only for certain ranks, and silently ignores the adapter of any other layer. An adapter that it does not support is
merged into the weights, all of which then go to the engine after an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hfdsl.rl.workers.config import GenerationConfig, ModelConfig
from hfdsl.rl.workers.linear_layers import KNOWN, linear_layers, targets_of
from hfdsl.rl.workers.lora import Lora

RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM allocates; an adapter of another rank takes the next larger one."""

TOGETHER: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that vLLM computes as one: if one has an adapter, it allocates room for all of them."""

BY_OUTPUTS: Final = frozenset(name for names in TOGETHER for name in names)
"""The layers whose outputs, and so rows of B, the ranks of an engine divide; of the others, the columns of A."""

LAYERS: Final = BY_OUTPUTS | {"o_proj", "down_proj"}
"""The layers that may have an adapter in an engine."""

MATRIX_A: Final = ".lora_A.weight"
MATRIX_B: Final = ".lora_B.weight"
"""The suffixes of an adapter's matrices outside of a module, as peft saves them."""


def adapter_problem(lora: Lora, values: Mapping[str, Any]) -> str | None:
    """Why vLLM cannot hold an adapter apart from the weights of a model of this configuration, or None.

    >>> adapter_problem(Lora(), {"model_type": "llama"})
    >>> adapter_problem(Lora(targets=("q_proj", "lm_head")), {"model_type": "llama"})
    "vLLM supports no adapter of 'lm_head'"
    >>> adapter_problem(Lora(rank=600), {"model_type": "llama"})
    'vLLM supports adapters up to rank 512, but rank = 600'
    """
    if values.get("model_type") not in KNOWN:
        kinds = ", ".join(KNOWN)
        return f"hfdsl has tested adapters in vLLM with {kinds}, but the model is {values.get('model_type')!r}"
    unsupported = next((target for target in targets_of(lora) if target.rpartition(".")[2] not in LAYERS), None)
    if unsupported is not None:
        return f"vLLM supports no adapter of '{unsupported}'"
    return None if lora.rank <= RANKS[-1] else f"vLLM supports adapters up to rank {RANKS[-1]}, but rank = {lora.rank}"


def is_apart(generation: GenerationConfig, lora: Lora | None, values: Mapping[str, Any]) -> bool:
    """Whether the engine of a role holds its adapter apart from the weights."""
    if lora is None or generation.engine != "vllm" or generation.adapter == "merged":
        return False
    return generation.adapter == "apart" or adapter_problem(lora, values) is None


def allocated_rank(rank: int) -> int:
    """The rank for which vLLM allocates an adapter.

    >>> [allocated_rank(rank) for rank in (1, 4, 16, 17, 600)]
    [1, 8, 16, 32, 600]
    """
    return next((size for size in RANKS if size >= rank), rank)


def engine_adapter_elements(model: ModelConfig, lora: Lora, parts: int = 1) -> int | None:
    """The elements that each part of an engine allocates for an adapter; None if a size of the model is missing.

    >>> sizes = {"hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1}
    >>> sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    >>> model = ModelConfig(config={"model_type": "llama", **sizes})
    >>> engine_adapter_elements(model, Lora(rank=8, targets=("down_proj",)), parts=2)
    56
    """
    layers = linear_layers(model)
    if layers is None:
        return None
    targets = {target.rpartition(".")[2] for target in targets_of(lora)} or LAYERS
    allocated = {name for group in TOGETHER if targets & set(group) for name in group} | targets
    elements = 0
    for path, (outputs, inputs) in layers.items():
        name = path.rpartition(".")[2]
        if name in allocated:
            elements += inputs + outputs // parts if name in BY_OUTPUTS else inputs // parts + outputs
    return allocated_rank(lora.rank) * elements
