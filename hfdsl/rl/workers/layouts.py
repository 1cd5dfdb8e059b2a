"""The parameters of a ready-made role's model, and the parts that its ranks hold, before the model is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hfdsl.plan.buckets import filled
from hfdsl.protocols.boxes import total
from hfdsl.protocols.layouts import ByName, Generation, Parameter, Replicas, Shards, Slices, StandardLayout
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.role_facts import Resharding
from hfdsl.rl.hub import local_folder
from hfdsl.rl.workers.config import ActorConfig, ModelConfig, SamplerConfig, kept_dtype
from hfdsl.rl.workers.engine_adapters import MATRIX_A, MATRIX_B
from hfdsl.rl.workers.linear_layers import adapted_layers, linear_layers
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.slicing import HEADS, WithModel, model_config
from hfdsl.rl.workers.state_bytes import saved_shapes, weight_count

COLUMNS: Final = ("gate_proj", "up_proj")
"""Modules whose outputs are sliced, beside those of heads; outputs of the others are whole on every rank."""

ROWS: Final = ("o_proj.weight", "down_proj.weight")
"""Parameters sliced by the inputs of their modules."""

VOCABULARY: Final = ("model.embed_tokens.weight", "lm_head.weight")

EXPORTED: Final = "model."
"""The prefix of a role's weights before their names in the model."""


def state_parameters(config: WithModel) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of the exported state ``"policy"``; none if the configuration does not determine them.

    They are the matrices of an adapter, in float32, for a sampler with one and for a role that sends it alone. A sync
    sends weights in the dtype that the sampler states, so this is the one in which it keeps them.

    >>> from hfdsl.rl.workers import ReferenceConfig
    >>> sizes = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 6}
    >>> sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    >>> config = ReferenceConfig(ModelConfig(config={"model_type": "llama", **sizes}))
    >>> [(each.name, each.shape) for each in state_parameters(config)["policy"]][:2]
    [('model.model.embed_tokens.weight', (8, 4)), ('model.model.layers.0.self_attn.q_proj.weight', (4, 4))]
    """
    model, lora = config.model, getattr(config, "lora", None)
    if lora is not None and (lora.exports == "adapter" or isinstance(config, SamplerConfig)):
        matrices = tuple(_adapter_matrices(model, lora))
        return {"policy": matrices} if matrices else {}
    if isinstance(config, SamplerConfig):
        on_device = config.generation.engine != "vllm"
        return _model_parameters(replace(model, dtype=kept_dtype(config)), contiguous=on_device)
    adapted = () if lora is None else adapted_layers(model, lora)  # merged into buffers
    return _model_parameters(model, contiguous=adapted is not None, computed=adapted or ())


def _adapter_matrices(model: ModelConfig, lora: Lora) -> Iterator[Parameter]:
    """The matrices A and B of an adapter, layer by layer; none if the model's layers are not known."""
    for path, (outputs, inputs) in (adapted_layers(model, lora) or {}).items():
        yield Parameter(f"{EXPORTED}{path}{MATRIX_A}", (lora.rank, inputs), "float32")
        yield Parameter(f"{EXPORTED}{path}{MATRIX_B}", (outputs, lora.rank), "float32")


def _model_parameters(
    model: ModelConfig, contiguous: bool = False, computed: Collection[str] = ()
) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of a whole model, under the name of its state; not ``contiguous`` if of ``computed`` layers."""
    shapes = saved_shapes(local_folder(model.path)) if model.path is not None and not model.config else {}
    if shapes and VOCABULARY[0] not in shapes:
        return {}  # transformers may load them under other names
    parameters = [Parameter(name, tuple(shape), model.dtype) for name, shape in shapes.items()] or list(
        _llama_like(model)
    )
    if shapes and "lm_head.weight" not in shapes and model_config(model).get("tie_word_embeddings"):
        parameters += [
            Parameter("lm_head.weight", parameter.shape, model.dtype)
            for parameter in parameters
            if parameter.name == VOCABULARY[0]
        ]
    count = sum(parameter.bytes // parameter.item_bytes for parameter in parameters)
    exported = tuple(
        replace(
            parameter,
            name=EXPORTED + parameter.name,
            contiguous=contiguous and parameter.name.rpartition(".")[0] not in computed,
        )
        for parameter in parameters
    )
    return {"policy": exported} if exported and count == weight_count(model) else {}


def _llama_like(model: ModelConfig) -> Iterator[Parameter]:
    """The parameters of a model whose linear layers are all known, in the order of its modules."""
    values, layers = model_config(model), linear_layers(model)
    vocabulary, width, kind = values.get("vocab_size"), values.get("hidden_size"), values.get("model_type")
    if layers is None or not isinstance(vocabulary, int) or not isinstance(width, int):
        return

    def parameter(name: str, *shape: int) -> Parameter:
        return Parameter(name, shape, model.dtype)

    head = layers["model.layers.0.self_attn.k_proj"][0] // int(values[HEADS[1]])
    yield parameter(VOCABULARY[0], vocabulary, width)
    for path, (outputs, inputs) in layers.items():
        block, _, module = path.rpartition(".")
        yield parameter(f"{path}.weight", outputs, inputs)
        if _has_bias(kind, module, bool(values.get("attention_bias")), bool(values.get("mlp_bias"))):
            yield parameter(f"{path}.bias", outputs)
        if module == "o_proj" and kind == "qwen3":
            yield from (parameter(f"{block}.{norm}.weight", head) for norm in ("q_norm", "k_norm"))
        if module == "down_proj":
            layer = block.removesuffix(".mlp")
            yield from (
                parameter(f"{layer}.{norm}.weight", width) for norm in ("input_layernorm", "post_attention_layernorm")
            )
    yield parameter("model.norm.weight", width)
    yield parameter(VOCABULARY[1], vocabulary, width)


def _has_bias(kind: object, module: str, attention: bool, mlp: bool) -> bool:
    if module in ("q_proj", "k_proj", "v_proj"):
        return kind == "qwen2" or (kind in ("llama", "qwen3") and attention)
    if module == "o_proj":
        return kind in ("llama", "qwen3") and attention
    return kind == "llama" and mlp


def model_layout(model: ModelConfig, tp: int) -> StandardLayout | None:
    """The slices of a model over ``tp`` ranks; None if its plan is known only once it is loaded.

    >>> sizes = {"vocab_size": 9, "hidden_size": 4, "intermediate_size": 6}
    >>> sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    >>> layout = model_layout(ModelConfig(config={"model_type": "llama", **sizes}), 2)
    >>> layout.boxes(Parameter("model.model.layers.0.self_attn.k_proj.weight", (4, 4)), Mesh(tp=2), 1)
    (((2, 4), (0, 4)),)
    """
    values = model_config(model)
    if tp == 1:
        return Replicas()
    vocabulary = values.get("vocab_size")
    if linear_layers(model) is None or not isinstance(vocabulary, int):
        return None
    heads, key_heads = (int(values[name]) for name in HEADS)
    return ByName(
        {f"*.{name}": Slices(1) for name in ROWS}
        | {"*.q_proj.*": Slices(0, units=heads)}
        | {f"*.{name}.*": Slices(0, units=key_heads) for name in ("k_proj", "v_proj")}
        | {f"*.{name}.*": Slices(0) for name in COLUMNS}
        | ({EXPORTED + name: Slices(0) for name in VOCABULARY} if vocabulary % tp == 0 else {})
    )


def training_layout(mesh: Mesh, config: ActorConfig) -> StandardLayout | None:
    """The layout in which an actor learns: slices over ``tp``, and with FSDP shards of these over ``dp``."""
    layout = model_layout(config.model, mesh.tp)
    if layout is None or mesh.pp > 1 or (config.lora is not None and mesh.tp > 1):  # HF715
        return None
    return layout.then(Shards("dp")) if config.training.sharding == "fsdp" else layout


def generation_layout(mesh: Mesh, config: ActorConfig) -> StandardLayout | None:
    """The layout in which an actor generates: slices over ``gen_tp``."""
    layout = model_layout(config.model, mesh.gen_tp_size)
    return None if layout is None or mesh.pp > 1 else Generation(layout)


GATHERED_BYTES: Final = 128 * 2**20
"""The most bytes of a rank's own slices in a bucket on the way to generation slices."""

GATHERED_BUCKETS: Final = 2
"""The buckets that exist at a time."""


def reshards(mesh: Mesh, config: ActorConfig) -> dict[str, Resharding]:
    """How an actor's weights become its generation slices; nothing if they are the same, or an engine has its own.

    >>> from hfdsl.rl.workers import GenerationConfig
    >>> sizes = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 6}
    >>> sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    >>> actor = ActorConfig(ModelConfig(config={"model_type": "llama", **sizes}), GenerationConfig(max_tokens=1))
    >>> [(name, each.in_place, each.staging) for name, each in reshards(Mesh(tp=2, gen_tp=1), actor).items()]
    [('generate', True, 560)]
    """
    held, needed = training_layout(mesh, config), generation_layout(mesh, config)
    parameters = _model_parameters(config.model).get("policy", ())
    if mesh.gen_tp_size == mesh.tp or config.generation.engine == "vllm" or None in (held, needed) or not parameters:
        return {}
    if model_config(config.model).get("tie_word_embeddings"):
        parameters = tuple(parameter for parameter in parameters if parameter.name != EXPORTED + VOCABULARY[1])
    fsdp = config.training.sharding == "fsdp" and mesh.dp > 1
    slices = model_layout(config.model, mesh.tp) or Replicas()
    held_slices = [_Slice.of(slices, parameter, Mesh(tp=mesh.tp)) for parameter in parameters]
    staging = max((_staging(mesh, unit, fsdp=fsdp) for unit in _units(held_slices, fsdp=fsdp)), default=0)
    change = Resharding(
        state="policy",
        parameters=parameters,
        held=held or slices,
        needed=needed or slices,
        in_place=not fsdp,
        staging=staging,
    )
    return {"generate": change}


@dataclass(frozen=True, slots=True)
class _Slice:
    """A rank's slice of a parameter, and the dim that ``tp`` slices; None if the rank holds all."""

    name: str
    bytes: int
    dim: int | None

    @classmethod
    def of(cls, layout: StandardLayout, parameter: Parameter, mesh: Mesh) -> _Slice:
        boxes = layout.boxes(parameter, mesh, 0)
        cut = (
            dim
            for dim, size in enumerate(parameter.shape)
            if sum(stop - start for start, stop in {box[dim] for box in boxes}) < size
        )
        return cls(parameter.name, total(boxes) * parameter.item_bytes, next(cut, None))


def _units(slices: Sequence[_Slice], *, fsdp: bool) -> Collection[list[_Slice]]:
    """The slices that a rank gathers over ``tp`` in a row.

    With FSDP those of a layer, or of all parameters outside of layers; else all.
    """
    units = dict[str, list[_Slice]]()
    for held in slices:
        layer = held.name.partition(".layers.")[2].partition(".")[0] if fsdp else ""
        units.setdefault(layer, []).append(held)
    return units.values()


def _staging(mesh: Mesh, unit: Sequence[_Slice], *, fsdp: bool) -> int:
    """The bytes beside generation slices: of two buckets the slices of this rank, and what arrives in buffers.

    With FSDP the slices of this rank are those of the whole unit.
    """
    cut = [(held, held.bytes) for held in unit if held.dim is not None]
    staged = [
        sum(held.bytes * ((not fsdp) + (mesh.micro_dp_size if held.dim else 0)) for held in bucket)
        for bucket, _ in filled(cut, GATHERED_BYTES)
    ]
    most = max((sum(staged[i : i + GATHERED_BUCKETS]) for i in range(len(staged))), default=0)
    return most + (sum(held.bytes for held in unit) if fsdp else 0)


def sampler_layout(mesh: Mesh, config: SamplerConfig) -> StandardLayout | None:
    """The layout of a sampler: slices over ``gen_tp``, or with an engine all of the model in host memory."""
    if config.generation.engine == "vllm":
        return Replicas()
    layout = model_layout(config.model, mesh.gen_tp_size)
    sliced_adapter = config.lora is not None and mesh.tp > 1  # HF715
    return None if layout is None or mesh.pp > 1 or sliced_adapter else Generation(layout)
