"""The configuration of a model, read before the model is loaded, and the sizes that tensor parallelism slices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.hub import local_folder
from hfdsl.rl.workers.config import ActorConfig, ModelConfig, SamplerConfig
from hfdsl.types.foreign_text import parse_object
from hfdsl.types.numbers import is_count

BY_HEADS: Final = frozenset(
    (
        "cohere", "cohere2", "ernie4_5", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_neox", "granite",
        "helium", "llama", "ministral", "mistral", "nemotron", "olmo", "phi", "qwen2", "qwen3", "smollm3", "starcoder2",
    )
)  # fmt: skip  # a list of names
"""Model types whose attention transformers slices by heads; loading checks the others."""

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
    saved = {} if model.path is None else read_object(local_folder(model.path) / "config.json")
    return {**saved, **(model.config or {})}


def read_object(file: Path) -> dict[str, Any]:
    """The values of a JSON file that can be read; loading reports any problem with it."""
    try:
        return parse_object(file.read_bytes()) if file.is_file() else {}
    except (OSError, ValueError):
        return {}


def vocabulary(config: WithModel) -> int | None:
    """The number of tokens that the model has embeddings for, for checks; None if its configuration does not say.

    >>> from hfdsl.rl.workers import ReferenceConfig
    >>> vocabulary(ReferenceConfig(ModelConfig(config={"model_type": "llama", "vocab_size": 32000})))
    32000
    """
    return model_config(config.model).get("vocab_size")


DROPOUTS: Final = (
    "activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout", "embd_pdrop",
    "embedding_dropout", "hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "residual_dropout",
)  # fmt: skip  # a list of names
"""The fields of transformers' configurations that drop activations of a model that learns."""


def drops(config: ActorConfig) -> dict[str, float]:
    """The share of activations that updates set to 0, by setting, for checks.

    >>> from hfdsl.rl.workers import GenerationConfig
    >>> from hfdsl.rl.workers.lora import Lora
    >>> model = ModelConfig(config={"model_type": "llama", "attention_dropout": 0.1})
    >>> drops(ActorConfig(model, GenerationConfig(8), lora=Lora(dropout=0.05)))
    {'lora.dropout': 0.05, 'model.config.attention_dropout': 0.1}
    """
    values = model_config(config.model)
    adapter = {"lora.dropout": config.lora.dropout} if config.lora is not None else {}
    shares = adapter | {f"model.config.{name}": values[name] for name in DROPOUTS if name in values}
    return {name: float(share) for name, share in shares.items() if isinstance(share, (int, float)) and share > 0}


def sliced(config: WithModel) -> dict[str, int]:
    """The sizes in the configuration of a role's model that its ``tp`` has to divide.

    >>> from hfdsl.rl.workers import ReferenceConfig
    >>> sliced(ReferenceConfig(ModelConfig(config={"model_type": "llama", "num_attention_heads": 14})))
    {'num_attention_heads': 14}
    """
    values = model_config(config.model)
    names: tuple[str, ...] = (*HEADS, *WIDTHS) if values.get("model_type") in BY_HEADS else WIDTHS
    if isinstance(config, SamplerConfig) and config.generation.engine == "vllm":
        names = tuple(name for name in names if name != HEADS[1])  # see ``parts_problem``
    return {name: values[name] for name in names if isinstance(values.get(name), int)}


def parts_problem(values: Mapping[str, Any], parts: int) -> str | None:
    """Why vLLM cannot cut a model of this configuration into ``parts``, or None.

    All parts have the same number of attention heads. Each has some of the key-value heads or, if there are fewer heads
    than parts, shares one with other parts.

    >>> sizes = {"model_type": "llama", "num_attention_heads": 12, "num_key_value_heads": 3, "intermediate_size": 32}
    >>> [parts_problem({**sizes, "num_key_value_heads": heads}, 4) for heads in (1, 2, 4, 12)]
    [None, None, None, None]
    >>> parts_problem(sizes, 4)
    'an engine on 4 ranks needs num_key_value_heads that 4 divides or that divide 4, and the model has 3'
    """
    by_heads = values.get("model_type") in BY_HEADS
    for name in (*HEADS, *WIDTHS) if by_heads else HEADS[:1]:
        size, shared = values.get(name), name == HEADS[1]
        if is_count(size, least=1) and size % parts and not (shared and parts % size == 0):
            divides = f"that {parts} divides" + (f" or that divide {parts}" if shared else "")
            return f"an engine on {parts} ranks needs {name} {divides}, and the model has {size}"
    return None


def group_problem(mesh: Mesh, engine_tp: int | None) -> str | None:
    """Why the ranks of a mesh cannot share engines of this width, or None.

    >>> group_problem(Mesh(dp=4), 2), group_problem(Mesh(tp=4, gen_tp=2), 2)
    (None, None)
    >>> group_problem(Mesh(dp=3), 2)
    'engine_tp = 2 does not divide the 3 ranks of dp'
    >>> group_problem(Mesh(tp=4), 2)
    'engine_tp = 2, and the mesh has engines of 4 ranks, by its tp = 4; leave out engine_tp, or set gen_tp = 2'
    """
    if engine_tp is None or engine_tp == mesh.gen_tp_size:
        return None
    if mesh.tp > 1:
        advice = f", or set gen_tp = {engine_tp}" if mesh.tp % engine_tp == 0 else ""
        folded = f" and gen_tp = {mesh.gen_tp}" if mesh.gen_tp is not None else ""
        width = f"{mesh.gen_tp_size} rank{'s' * (mesh.gen_tp_size > 1)}"
        return (
            f"engine_tp = {engine_tp}, and the mesh has engines of {width}, by its tp = {mesh.tp}{folded}; "
            f"leave out engine_tp{advice}"
        )
    if mesh.dp % engine_tp:
        return f"engine_tp = {engine_tp} does not divide the {mesh.dp} rank{'s' * (mesh.dp > 1)} of dp"
    return None
