"""Slices of a model over the ranks of ``tp``, by the plan that its class in transformers declares.

An example
----------
A Llama with 4 attention heads, 2 key-value heads and a feed-forward layer of 8 features, over ``tp=2``::

    module                     style                    rank 0           rank 1
    embed_tokens               embedding_rowwise        tokens 0..V/2    tokens V/2..V
    layers.*.self_attn.q_proj  colwise                  heads 0, 1       heads 2, 3
    layers.*.self_attn.k_proj  colwise                  kv head 0        kv head 1
    layers.*.self_attn.v_proj  colwise                  kv head 0        kv head 1
    layers.*.self_attn.o_proj  rowwise                  heads 0, 1       heads 2, 3
    layers.*.mlp.up_proj       colwise                  features 0..3    features 4..7
    layers.*.mlp.down_proj     rowwise                  features 0..3    features 4..7
    lm_head                    colwise                  tokens 0..V/2    tokens V/2..V

Why this is right: between a ``colwise`` and a ``rowwise`` module a rank has only its own features, so nothing there may
mix features of two ranks. An activation function works feature by feature. Attention works head by head: slices are
consecutive, query head i reads key-value head i // 2, and both are on the same rank. The checks below ensure it:

- ``tp`` divides the heads, the key-value heads and the features (``_check_sizes``); with ``tp=4`` two ranks would need
  the same key-value head.
- No module with parameters stands between slices unless the plan names it (``_check_complete``): a norm over all
  features would see half of them.
- Dropout is 0 (``_check_sizes``): ranks draw different masks, and replicated values would differ.

A module with the style ``replicated_with_grad_allreduce``, such as a norm within a head, is whole on every rank but
reads slices, so each rank has only a part of its gradient: see ``parameters_with_partial_gradients``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from math import gcd
from typing import Any, Final

from torch import nn

from hfdsl.errors import ResourceError
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.models.parallel_layers import (
    ColumnParallelLinear,
    EnterParallel,
    ParallelInput,
    RowParallelLinear,
    Sliced,
    VocabParallelEmbedding,
    copy_to_ranks,
    local_slice,
)

COLUMN_STYLES: Final = ("colwise", "colwise_gather_output", "colwise_rep")
ROW_STYLES: Final = ("rowwise", "rowwise_split_input", "rowwise_rep")
VOCAB_STYLE: Final = "embedding_rowwise"
REPLICATED_STYLE: Final = "replicated_with_grad_allreduce"
"""The styles of plans in transformers; the last one is for replicated modules that read slices."""

LAYERS: Final[Mapping[str, type[Sliced]]] = {
    **dict.fromkeys(COLUMN_STYLES, ColumnParallelLinear),
    **dict.fromkeys(ROW_STYLES, RowParallelLinear),
    VOCAB_STYLE: VocabParallelEmbedding,
}

KEY_PROJECTIONS: Final = ("k_proj", "qkv_proj", "query_key_value")
"""The modules whose features are those of heads: attention is sliced if they are sliced and not gathered."""

DIVISIBLE_FIELDS: Final = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""The numbers of a configuration that ``tp`` has to divide; the first two only if attention is sliced."""


def parallelize(model: Any, peers: AxisGroup, name: str) -> Any:
    """Replace a causal model's weights by this rank's slices; messages call it ``name``.

    Raises:
        ResourceError: HF812 if it cannot be cut into this many slices.
    """
    if peers.size == 1:
        return model
    # Modules of one parent share the copy of their input. The output layer, the only one at the top, does not: it reads
    # hidden states in several parts (see ``Policy.forward``), each of which needs a copy of its own.
    enters: dict[str, EnterParallel] = {"": partial(copy_to_ranks, peers=peers)}
    slices: dict[int, nn.Parameter] = {}
    for path, style in tensor_parallel_plan(model, peers.size, name).items():
        module, (parent, _, leaf) = model.get_submodule(path), path.rpartition(".")
        if style == REPLICATED_STYLE:
            module.reads_slices = True
            continue
        owner = model.get_submodule(parent)
        if style in COLUMN_STYLES and parent not in enters:
            enters[parent] = entry = ParallelInput(peers)
            owner.register_forward_hook(entry.forget, always_call=True)
        layer = _empty(style, module, enters.get(parent), peers)
        for kind, parameter in module._parameters.items():
            layer.register_parameter(kind, _slice(parameter, layer.dims.get(kind), peers, slices))
        setattr(owner, leaf, layer)
    return model


def _empty(style: str, module: Any, enter: EnterParallel | None, peers: AxisGroup) -> Sliced:
    """The layer that replaces a module, still without its parameters."""
    if enter is not None and style in COLUMN_STYLES:
        return ColumnParallelLinear(enter, peers, gather=style != "colwise")
    if style in ROW_STYLES:
        return RowParallelLinear(peers, split=style != "rowwise")
    return VocabParallelEmbedding(module.padding_idx, peers)


def _slice(
    full: nn.Parameter | None, dim: int | None, peers: AxisGroup, slices: dict[int, nn.Parameter]
) -> nn.Parameter | None:
    """This rank's slice of a parameter; ``slices`` collects them, so that tied parameters stay tied."""
    if full is None or dim is None:
        return full
    # An id is safe as a key: all full parameters exist before the first slice, so none can reuse another's id.
    if id(full) not in slices:
        slices[id(full)] = nn.Parameter(local_slice(full.data, dim, peers), full.requires_grad)
    return slices[id(full)]


def tensor_parallel_plan(model: Any, size: int, name: str) -> dict[str, str]:
    """The style of every module that is cut into ``size`` slices, by its name.

    An output layer whose tokens ``size`` does not divide stays whole, and so does an embedding that is tied to it.

    Raises:
        ResourceError: HF812 if the model has no plan, or one with an unknown style or sizes that do not divide.
    """
    modules = dict(model.named_modules())
    patterns = [
        (re.compile(re.escape(key).replace(r"\*", r"\d+")), style) for key, style in (model.tp_plan or {}).items()
    ]
    paths = [*modules, *(path for path, _ in model.named_parameters())]
    plan = {path: style for path in paths for pattern, style in patterns if pattern.fullmatch(path)}
    if not any(style in ROW_STYLES for style in plan.values()):
        raise _refused(name, size, f"transformers has no tensor-parallel plan for {type(model).__name__}")
    for path, style in plan.items():
        linear = style in (*COLUMN_STYLES, *ROW_STYLES) and isinstance(modules.get(path), nn.Linear)
        if not linear and (style not in (VOCAB_STYLE, REPLICATED_STYLE) or path not in modules):
            raise _refused(
                name, size, f"its plan has {path} cut by {style!r}, which the ready-made roles do not support"
            )
    _with_vocabulary(plan, model, size)
    _check_sizes(plan, modules, model.config.get_text_config(), size, name)
    _check_complete(plan, modules, size, name)
    return plan


def _with_vocabulary(plan: dict[str, str], model: Any, size: int) -> None:
    """Slice the output layer and the embedding if their sizes allow it; both or neither if they are tied."""
    names = {id(module): path for path, module in model.named_modules()}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head.weight is embedding.weight
    ordinary = type(embedding) is nn.Embedding and embedding.max_norm is None and not len(embedding.weight) % size
    ends = {names[id(head)]: not len(head.weight) % size and (ordinary or not tied), names[id(embedding)]: ordinary}
    for path, divides in ends.items():
        if not divides:
            plan.pop(path, None)
    if names[id(head)] in plan:
        plan[names[id(head)]] = "colwise"  # not gathered: parallel_log_probs_and_entropies reads slices of logits
    if tied:
        plan.pop(names[id(embedding)], None)
    if tied and names[id(head)] in plan:
        plan[names[id(embedding)]] = VOCAB_STYLE


def _check_sizes(plan: Mapping[str, str], modules: Mapping[str, nn.Module], config: Any, size: int, name: str) -> None:
    heads = any(path.rpartition(".")[2] in KEY_PROJECTIONS and style == "colwise" for path, style in plan.items())
    counts = {field: getattr(config, field, None) for field in (DIVISIBLE_FIELDS if heads else DIVISIBLE_FIELDS[2:])}
    sizes = {field: count for field, count in counts.items() if isinstance(count, int)}
    for field, count in sizes.items():
        if count % size:
            common = gcd(*sizes.values())
            fitting = ", ".join(str(n) for n in range(1, common + 1) if common % n == 0)
            raise _refused(name, size, f"{field}={count} of its config is not divisible by {size}; tp can be {fitting}")
    for field, share in config.to_dict().items():
        if share and ("dropout" in field or "pdrop" in field) and not field.startswith("classifier"):
            raise _refused(
                name, size, f"{field}={share} of its config drops different values on every rank; set it to 0"
            )
    for path, style in plan.items():
        module: Any = modules[path]
        count = module.in_features if style in ROW_STYLES else module.out_features if style in COLUMN_STYLES else size
        if count % size:
            side = "input" if style in ROW_STYLES else "output"
            raise _refused(name, size, f"{path} has {count} {side} features, which is not divisible by {size}")


def _check_complete(plan: Mapping[str, str], modules: Mapping[str, nn.Module], size: int, name: str) -> None:
    """Refuse a plan that leaves out a module with parameters beside modules that pass slices to each other."""
    parents = {path.rpartition(".")[0] for path, style in plan.items() if style in ("colwise", "rowwise")}
    for parent in sorted(parents):
        for path, module in modules.items():
            named = any(path == planned or path.startswith(f"{planned}.") for planned in plan)
            if path.startswith(f"{parent}.") and not named and next(module.parameters(recurse=False), None) is not None:
                raise _refused(name, size, f"its plan does not say how to cut {path}, which reads slices")


def _refused(name: str, size: int, problem: str) -> ResourceError:
    return ResourceError("HF812", f"the model {name} cannot be cut over the mesh axis tp={size}: {problem}")


# -- the slices of a module --------------------------------------------------------------------------------------------


def slice_dims(module: nn.Module) -> dict[str, int]:
    """The dims that are sliced, by the parameter's name in ``state_dict()``."""
    return {
        f"{path}.{name}": dim
        for path, inner in module.named_modules()
        if isinstance(inner, Sliced)
        for name, dim in inner.dims.items()
        if inner._parameters.get(name) is not None
    }


def planned_slice_dims(model: Any, size: int) -> dict[str, int]:
    """The dims by which a plan would slice a model into ``size`` slices, by the parameter's name."""
    if size == 1:
        return {}
    return {
        f"{path}.{name}": dim
        for path, style in tensor_parallel_plan(model, size, "").items()
        if style != REPLICATED_STYLE
        for name, dim in LAYERS[style].dims.items()
    }


def sliced_parameters(module: nn.Module) -> set[nn.Parameter]:
    """The parameters that this rank holds a slice of."""
    return {module.get_parameter(name) for name in slice_dims(module)}


def parameters_with_partial_gradients(module: nn.Module) -> Iterator[nn.Parameter]:
    """The replicated parameters that read slices, so that each rank has a part of their gradient."""
    for inner in module.modules():
        if getattr(inner, "reads_slices", False):
            yield from inner.parameters()
