"""The bytes of the state of a ready-made role on one rank, as a checkpoint or a copy of it in memory holds them."""

from __future__ import annotations

from typing import Any

from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.workers.config import ActorConfig, CriticConfig, SamplerConfig, kept_dtype
from hfdsl.rl.workers.gpu_memory import PartBytes, head_parameters, parameter_count, resident_parts
from hfdsl.rl.workers.linear_layers import adapter_parameters
from hfdsl.rl.workers.state_bytes import ITEM_BYTES


def kept_bytes(mesh: Mesh, config: ActorConfig | CriticConfig | SamplerConfig) -> PartBytes:
    """The parts of ``state()`` on a rank after an update; none if the model is not known.

    Beside an adapter the weights of the model are not in it. The copy beside an engine is complete on every rank.

    >>> from hfdsl.rl.workers import GenerationConfig, ModelConfig
    >>> sizes = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 6}
    >>> sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    >>> kept_bytes(Mesh(), ActorConfig(ModelConfig(config={"model_type": "llama", **sizes}), GenerationConfig(8)))
    {'weights': 784, 'moments': 1568}
    """
    count = parameter_count(config)
    if count is None:
        return {}
    if config.lora is not None:
        adapter = adapter_parameters(config.model, config.lora)
        if adapter is None:
            return {}
        learned = adapter + head_parameters(config)
        return {"adapter": 4 * learned} | ({} if isinstance(config, SamplerConfig) else {"moments": 8 * learned})
    if isinstance(config, SamplerConfig):
        shards = 1 if config.generation.engine == "vllm" else mesh.tp
        return {"weights": -(-count * ITEM_BYTES[kept_dtype(config)] // shards)}
    return resident_parts(mesh, config, count) or {}


def one_number(*args: Any, **kwargs: Any) -> PartBytes:
    """The state of a role without a model: one number."""
    return {"number": 8}
