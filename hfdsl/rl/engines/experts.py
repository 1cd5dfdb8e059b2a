"""Names of experts: transformers holds the experts of a layer as one weight, and a saved model has them one by one.

A layer of two experts, of a Mixtral with 8 features inside and 4 outside::

    transformers                                       a saved model, which an engine reads
    mlp.gate.weight            [2, 4]                  block_sparse_moe.gate.weight          [2, 4]
    mlp.experts.gate_up_proj   [2, 16, 4]              block_sparse_moe.experts.0.w1.weight  [8, 4]   the first half
                                                       block_sparse_moe.experts.0.w3.weight  [8, 4]   the second half
                                                       block_sparse_moe.experts.1.w1.weight  [8, 4]   and so on
    mlp.experts.down_proj      [2, 4, 8]               block_sparse_moe.experts.0.w2.weight  [4, 8]   and so on

An engine ignores names that it does not know, or reads fused weights in another layout. So a model with fused experts
that is not in the table is refused (HF951).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """How a saved model names the module of its experts, and of each expert the three projections."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


SAVED_NAMES: Final[Mapping[str, ExpertNames]] = {
    "mixtral": ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
    "qwen2_moe": ExpertNames(),
    "qwen3_moe": ExpertNames(),
    "olmoe": ExpertNames(),
}
"""The names by the ``model_type`` of a configuration."""

GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"


def unknown_experts(model_type: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """A weight that has the experts of a layer in it and whose saved names are not known, or None.

    >>> shapes = {"model.layers.0.mlp.experts.gate_up_proj": (2, 16, 4), "model.norm.weight": (4,)}
    >>> unknown_experts("mixtral", shapes), unknown_experts("jamba", shapes)
    (None, 'model.layers.0.mlp.experts.gate_up_proj')
    """
    known = model_type in SAVED_NAMES
    fused = (name for name, shape in shapes.items() if ".experts." in name and len(shape) > 2)
    return next((name for name in fused if not (known and name.endswith((GATE_UP, DOWN)))), None)


def with_saved_names(
    model_type: str, weights: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of a model by the names that a saved one has for them.

    >>> import torch
    >>> weights = [("mlp.gate.weight", torch.ones(2, 4)), ("mlp.experts.gate_up_proj", torch.ones(2, 16, 4))]
    >>> saved = [(name, *weight.shape) for name, weight in with_saved_names("mixtral", weights)]
    >>> saved[:2]
    [('block_sparse_moe.gate.weight', 2, 4), ('block_sparse_moe.experts.0.w1.weight', 8, 4)]
    >>> [name for name, *_ in saved[2:]]  # doctest: +NORMALIZE_WHITESPACE
    ['block_sparse_moe.experts.0.w3.weight', 'block_sparse_moe.experts.1.w1.weight',
     'block_sparse_moe.experts.1.w3.weight']
    """
    names = SAVED_NAMES.get(model_type)
    for fused, weight in weights:
        if names is None:
            yield fused, weight
            continue
        name = fused if names.block == "mlp" else fused.replace("mlp.", f"{names.block}.")
        if fused.endswith(GATE_UP):
            prefix = name.removesuffix("gate_up_proj")
            for expert, both in enumerate(weight):
                gate, up = both.chunk(2)
                yield f"{prefix}{expert}.{names.gate}.weight", gate
                yield f"{prefix}{expert}.{names.up}.weight", up
        elif fused.endswith(DOWN):
            prefix = name.removesuffix("down_proj")
            for expert, down in enumerate(weight):
                yield f"{prefix}{expert}.{names.down}.weight", down
        else:
            yield name, weight
