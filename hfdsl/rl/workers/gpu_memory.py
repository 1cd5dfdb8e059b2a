"""The GPU memory of a ready-made role, predicted from its configuration before anything is loaded.

A role holds some parts all the time, and more while one of its methods runs. An engine beside a trainer is awake only
while the role generates, so the peak is the largest phase, not the sum. An actor of 1.26 billion float32 parameters
with AdamW, autocast to bfloat16, recomputed activations, and vLLM with a cache of 131,072 tokens, in GiB::

    between calls   weights 4.7, moments 9.4, engine's process 1.4, gradients 4.7
    generate        weights 4.7, moments 9.4, engine's process 1.4, engine's weights 2.4, cache 12.0, working memory 2.5
    update          weights 4.7, moments 9.4, engine's process 1.4, gradients 4.7, activations 6.4, fragmentation 1.3
    weights         weights 4.7, moments 9.4, engine's process 1.4, gradients 4.7, exported copy 4.7

With FSDP2 over two ranks the weights, moments and gradients are halved, and a pass gathers blocks one by one in the 16
bits of autocast, in which it also keeps its residuals::

    update          weights 2.4, moments 4.7, gradients 2.4, communicators 1.1, activations 4.0, fragmentation 3.0

Weights, moments and the engine's weights and cache are exact if the sizes of the model are known: HF959 counts them.
The rest are estimates: ``ENGINE_PROCESS`` and ``ENGINE_WORKING`` were measured with vLLM 0.26 on an H200,
``COMMUNICATORS`` there with NCCL, and activations are those of a layer of a Llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.workers.config import (
    ActorConfig,
    BatchingConfig,
    CriticConfig,
    GenerationConfig,
    ModelConfig,
    ReferenceConfig,
    RewardConfig,
    SamplerConfig,
    TrainingConfig,
    computes,
)
from hfdsl.rl.workers.engine_adapters import engine_adapter_elements, is_apart
from hfdsl.rl.workers.linear_layers import adapter_parameters
from hfdsl.rl.workers.lora import TILE_BYTES
from hfdsl.rl.workers.slicing import model_config
from hfdsl.rl.workers.state_bytes import ITEM_BYTES, state_bytes, weight_count, weight_counts

PartBytes: TypeAlias = dict[str, int]
"""Bytes by the name of the part of memory."""

ModelRoleConfig: TypeAlias = ActorConfig | SamplerConfig | CriticConfig | ReferenceConfig | RewardConfig

ENGINE_PROCESS: Final = 11 * 2**27
"""The bytes that an engine's process holds while it sleeps: its CUDA context, kernels, and the graphs of its steps."""

ENGINE_WORKING: Final = 5 * 2**29
"""The bytes that vLLM needs beside weights and cache while it samples: activations of prompts, logits, buffers."""

BLOCK_TOKENS: Final = 512
"""The tokens of an engine's cache beyond ``cache_tokens``: two blocks of at most 256. The engine itself needs one block
more than the sequences do."""

CHUNK_BYTES: Final = 2**30
"""The bytes of a part of the logits at a time: the logits, of 256 MiB, and the tensors computed from them."""

FRAGMENTS: Final = 5
"""The divisor of activations that yields the extra memory of torch's allocator, a fifth: measured were 0.6 GiB beside
3.3, and 1.5 beside 6.4."""

SHARDED_FRAGMENTS: Final = (6, 5)
"""The factor, as a fraction, for the extra memory with FSDP2, whose streams each keep blocks of their own, of the
tensors that come and go within a pass: twice 0.62 was measured with rows of one length, and 1.5 with packs of unlike
lengths beside an engine."""

COMMUNICATORS: Final = 17 * 2**26
"""The bytes that NCCL keeps on each GPU for the ranks of FSDP2, or of an engine in parts."""

SCORING: Final = ("log_probs", "base_log_probs", "values", "score", "cost")
"""The methods that pass sequences through a model without a gradient."""

ESTIMATES: Final = frozenset(
    {"engine's process", "engine's working memory", "communicators", "activations", "fragmentation"}
)
"""The parts that are not exact."""


def gpu_bytes(mesh: Mesh, config: ModelRoleConfig) -> dict[str, PartBytes]:
    """The parts on the GPU of a rank by method, and under ``""`` between calls; none if the model is not known.

    >>> sizes = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 6}
    >>> sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    >>> model = ModelConfig(config={"model_type": "llama", **sizes})
    >>> gpu_bytes(Mesh(), ReferenceConfig(model))[""]
    {'weights': 784}
    """
    count = parameter_count(config)
    generation = config.generation if isinstance(config, (ActorConfig, SamplerConfig)) else None
    engine = _engine(mesh, config, generation) if generation is not None and generation.engine == "vllm" else {}
    only_engine = isinstance(config, SamplerConfig) and bool(engine)  # its weights are in the engine alone
    resident = None if count is None else resident_parts(mesh, config, count, weights=not only_engine)
    if count is None or resident is None:
        return {}
    if engine:
        resident["engine's process"] = ENGINE_PROCESS
    if groups := _is_sharded(mesh, config) + (bool(engine) and _engine_ranks(mesh, generation) > 1):
        resident["communicators"] = groups * COMMUNICATORS
    scoring = {} if only_engine else _activations(mesh, config, count, None)
    sampling = max(
        {**resident, **engine}, {**resident, **scoring}, key=total
    )  # the engine sleeps before log-probs are computed
    if "moments" in resident:
        resident["gradients"] = resident["moments"] // 2
    phases: dict[str, PartBytes] = {"": sampling if only_engine else resident}
    if engine:
        phases["generate"] = sampling
    if isinstance(config, ActorConfig):
        exported = state_bytes(config).get("policy", 0)
        phases["weights"] = {**resident, "exported copy": exported}
        if config.lora is not None and config.lora.exports == "merged":  # a few rows at a time, by all of the adapter
            merged = {"merged rows": 2 * min(TILE_BYTES, 4 * count)}
            adapter = {"gathered adapter": _learned_bytes(config, count) or 0} if _is_sharded(mesh, config) else {}
            phases["held_weights"] = {**resident, **adapter, **merged}
        elif config.lora is None and _shards_masters(mesh, config):  # shards in 16 bits, of those in float32
            phases["held_weights"] = {**resident, "exported copy": -(-exported // (mesh.tp * mesh.dp))}
    training = config.training if isinstance(config, (ActorConfig, CriticConfig)) else None
    phases |= {name: {**resident, **scoring} for name in SCORING if scoring}
    if training is not None:
        learning = _activations(mesh, config, count, training)
        phases |= {name: {**resident, **learning} for name in ("update", "prefer", "imitate") if learning}
    return phases


def resident_parts(mesh: Mesh, config: Any, count: int, *, weights: bool = True) -> PartBytes | None:
    """The parts of a model and its optimizer that a rank always holds; None if an adapter's sizes are not known."""
    training: TrainingConfig | None = getattr(config, "training", None)
    sharded = _is_sharded(mesh, config)
    shards = mesh.tp * (mesh.dp if sharded else 1)
    masters = training is not None and _has_masters(config)
    item = 4 if masters and sharded else ITEM_BYTES[config.model.dtype]
    parts = {"weights": -(-count * item // shards)} if weights else {}
    if training is not None:
        learned = _learned_bytes(config, count)
        if learned is None:
            return None
        if masters and not sharded and config.lora is None:
            parts["master weights"] = -(-learned // shards)
        parts["moments"] = -(-2 * learned // shards)
    return parts


def _is_sharded(mesh: Mesh, config: Any) -> bool:
    training: TrainingConfig | None = getattr(config, "training", None)
    return training is not None and training.sharding == "fsdp" and mesh.dp > 1


def _shards_masters(mesh: Mesh, config: ActorConfig) -> bool:
    return _is_sharded(mesh, config) and _has_masters(config)


def no_gpu_bytes(mesh: Mesh, *args: object, **kwargs: object) -> dict[str, PartBytes]:
    """The parts of a role without a model: none."""
    return {"": {}}


def parameter_count(config: ModelRoleConfig) -> int | None:
    """The number of parameters of a role's model, a tied one once; None if unknown.

    A critic and a reward model have a head of one number instead of an output layer.
    """
    counts = weight_counts(config.model)
    if counts is None:
        return None
    backbone, output_layer = counts
    if isinstance(config, (CriticConfig, RewardConfig)):
        return backbone + head_parameters(config)
    return backbone + (0 if model_config(config.model).get("tie_word_embeddings") else output_layer)


def head_parameters(config: ModelRoleConfig) -> int:
    """The number of weights of a head of one number, which critics and reward models have; 0 if unknown."""
    width = model_config(config.model).get("hidden_size")
    return width if isinstance(config, (CriticConfig, RewardConfig)) and isinstance(width, int) else 0


def engine_bytes(mesh: Mesh, config: ActorConfig | SamplerConfig) -> PartBytes:
    """The weights and the cache of a role's engine, which are exact; none if the model's sizes are not known."""
    parts = _engine(mesh, config, config.generation)
    return {name: size for name, size in parts.items() if name not in ESTIMATES}


def _engine(mesh: Mesh, config: Any, generation: GenerationConfig) -> PartBytes:
    """The parts of an engine on a rank, one of ``engine_tp`` that share it; an adapter counts with the weights."""
    ranks = _engine_ranks(mesh, generation)
    item = ITEM_BYTES[computes(config)]
    weights, token = weight_count(config.model), _model_token_bytes(config.model, item, ranks)
    if weights is None or token is None:
        return {}
    apart = is_apart(generation, config.lora, model_config(config.model))
    adapter = engine_adapter_elements(config.model, config.lora, ranks) or 0 if apart else 0
    return {
        "engine's weights": -(-weights * item // ranks) + adapter * item,
        "engine's cache": (generation.cache_tokens + BLOCK_TOKENS) * token,
        "engine's working memory": ENGINE_WORKING,
    }


def _engine_ranks(mesh: Mesh, generation: GenerationConfig | None) -> int:
    return (generation.engine_tp if generation is not None else None) or mesh.gen_tp_size


def token_bytes(layers: int, key_heads: int, head_width: int, item: int, parts: int = 1) -> int:
    """The bytes of the keys and values of a token in each part of an engine, which has at least a whole head.

    ``item`` is the bytes of a number; every layer has attention.

    >>> [token_bytes(2, 2, 16, 2, parts) for parts in (1, 2, 4)]
    [256, 128, 128]
    """
    return 2 * layers * max(key_heads // parts, 1) * head_width * item


def _model_token_bytes(model: ModelConfig, item: int, parts: int) -> int | None:
    """The bytes of the keys and values of a token of a model; None if its sizes are not known."""
    values = model_config(model)
    layers, heads, width = (values.get(name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(width, int) and heads):
        return None
    key_heads, head_width = values.get("num_key_value_heads") or heads, values.get("head_dim") or width // heads
    return token_bytes(layers, key_heads, head_width, item, parts)


def _learned_bytes(config: Any, count: int) -> int | None:
    """The bytes that the optimizer updates: all parameters or their masters, or those of the adapter, in float32."""
    if config.lora is None:
        return count * (4 if _has_masters(config) else ITEM_BYTES[config.model.dtype])
    adapter = adapter_parameters(config.model, config.lora)
    return None if adapter is None else 4 * (adapter + head_parameters(config))


def _has_masters(config: Any) -> bool:
    """Whether parameters of 16 bits learn through float32 copies; with FSDP2, through shards in float32."""
    return bool(config.training.master_weights) and config.model.dtype != "float32"


def _activations(mesh: Mesh, config: Any, count: int, training: TrainingConfig | None) -> PartBytes:
    """The peak of a pass over a micro-batch, without gradients if ``training`` is None; none if unknown.

    With autocast, residuals are float32, inputs and outputs of linear layers have 2 bytes, and so has a second copy of
    the weights until the pass ends. With FSDP2, residuals have 2 bytes too, and the gathered weights are those of a
    block and the next one, with the gradients of one, and throughout the pass the embeddings and the head, with their
    gradients.
    """
    values, batching = model_config(config.model), config.batching
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    sizes = [values.get(name) for name in names]
    if not isinstance(batching, BatchingConfig) or batching.rows or not all(isinstance(size, int) for size in sizes):
        return {}
    width, inner, layers, vocabulary = (int(size or 0) for size in sizes)
    dtype, sharded = ITEM_BYTES[config.model.dtype], _is_sharded(mesh, config)
    narrow = ITEM_BYTES[_autocast(config) or config.model.dtype]
    has_output_layer = not (isinstance(config, (CriticConfig, RewardConfig)) or values.get("tie_word_embeddings"))
    ends = vocabulary * width * (1 + has_output_layer)
    around, blocks = (2 * ends * narrow, 3 * (count - ends) // layers * narrow) if sharded else (0, 0)
    casts = count * narrow if narrow != dtype and not sharded else 0
    residual = narrow if sharded else dtype
    layer = width * (12 * narrow if sharded else 16 + 10 * narrow) + inner * 4 * narrow
    if training is None:
        scoring = batching.tokens * (8 * width + 3 * inner * narrow)
        return _fragmented(0, around + casts + max(scoring + blocks, CHUNK_BYTES), sharded=sharded)
    saved = layers * batching.tokens * (width * residual if training.checkpointing else layer)
    working = batching.tokens * (layer * training.checkpointing + 2 * inner * narrow) + blocks
    # The peak is at the end of the forward pass or in the backward pass.
    return _fragmented(saved, around + max(casts + CHUNK_BYTES, working), sharded=sharded)


def _fragmented(saved: int, passing: int, *, sharded: bool) -> PartBytes:
    """Activations, saved for the whole pass or passing, and the memory of torch in blocks that fit no tensor."""
    times, parts = SHARDED_FRAGMENTS
    fragments = passing * times // parts if sharded else (saved + passing) // FRAGMENTS
    return {"activations": saved + passing, "fragmentation": fragments}


def _autocast(config: Any) -> str | None:
    training: TrainingConfig | None = getattr(config, "training", None)
    return training.autocast if training is not None else getattr(config, "autocast", None)


def total(parts: Mapping[str, int]) -> int:
    """The bytes of all parts."""
    return sum(parts.values())
