"""Which slices of a model the ranks of ``tp`` hold: by the plan that its class in transformers declares."""

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
"""What transformers calls the ways to cut a module; the last is of modules that are whole and read slices."""

LAYERS: Final[Mapping[str, type[Sliced]]] = {
    **dict.fromkeys(COLUMN_STYLES, ColumnParallelLinear),
    **dict.fromkeys(ROW_STYLES, RowParallelLinear),
    VOCAB_STYLE: VocabParallelEmbedding,
}

KEY_PROJECTIONS: Final = ("k_proj", "qkv_proj", "query_key_value")
"""The modules by which heads are cut, where their outputs are not gathered."""

DIVISIBLE_FIELDS: Final = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


def parallelize(model: Any, peers: AxisGroup, name: str) -> Any:
    """The same causal model, of which this rank keeps its slice; ``name`` is what a message calls it.

    Raises:
        ResourceError: HF812 where it cannot be cut into so many slices.
    """
    if peers.size == 1:
        return model
    enters: dict[str, EnterParallel] = {"": partial(copy_to_ranks, peers=peers)}  # the output layer reads part by part
    kept: dict[int, nn.Parameter] = {}
    for path, style in tensor_parallel_plan(model, peers.size, name).items():
        module, (parent, _, leaf) = model.get_submodule(path), path.rpartition(".")
        if style == REPLICATED_STYLE:
            module.reads_slices = True
            continue
        owner = model.get_submodule(parent)
        if style in COLUMN_STYLES and parent not in enters:
            enters[parent] = entry = ParallelInput(peers)
            owner.register_forward_hook(entry.forget, always_call=True)
        new = _empty(style, module, enters.get(parent), peers)
        for kind, parameter in module._parameters.items():
            new.register_parameter(kind, _own(parameter, new.dims.get(kind), peers, kept))
        setattr(owner, leaf, new)
    return model


def _empty(style: str, module: Any, enter: EnterParallel | None, peers: AxisGroup) -> Sliced:
    """The module that takes another's place, still without its parameters."""
    if enter is not None and style in COLUMN_STYLES:
        return ColumnParallelLinear(enter, peers, gather=style != "colwise")
    return (
        RowParallelLinear(peers, split=style != "rowwise")
        if style in ROW_STYLES
        else VocabParallelEmbedding(module.padding_idx, peers)
    )


def _own(
    whole: nn.Parameter | None, dim: int | None, peers: AxisGroup, kept: dict[int, nn.Parameter]
) -> nn.Parameter | None:
    if whole is None or dim is None:
        return whole
    if id(whole) not in kept:  # tied ones stay tied; all whole ones were there before the first slice
        kept[id(whole)] = nn.Parameter(local_slice(whole.data, dim, peers), whole.requires_grad)
    return kept[id(whole)]


def tensor_parallel_plan(model: Any, size: int, name: str) -> dict[str, str]:
    """How every module that is cut into ``size`` slices is cut, by its name.

    An output layer whose tokens cannot be divided stays whole, and an embedding that is tied to it.

    Raises:
        ResourceError: HF812 where the model has no plan, or one that is not known or does not work out.
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
            raise _refused(name, size, f"its plan has {path} cut by {style!r}, which the ready roles cannot do")
    _with_vocabulary(plan, model, size)
    _check_sizes(plan, modules, model.config.get_text_config(), size, name)
    _check_complete(plan, modules, size, name)
    return plan


def _with_vocabulary(plan: dict[str, str], model: Any, size: int) -> None:
    """Cut the output layer and the embedding where that works out, both where they are tied."""
    names = {id(module): path for path, module in model.named_modules()}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head.weight is embedding.weight
    ordinary = type(embedding) is nn.Embedding and embedding.max_norm is None and not len(embedding.weight) % size
    ends = {names[id(head)]: not len(head.weight) % size and (ordinary or not tied), names[id(embedding)]: ordinary}
    for path, divides in ends.items():
        if not divides:
            plan.pop(path, None)
    if names[id(head)] in plan:
        plan[names[id(head)]] = "colwise"  # slices of logits are read as such: see parallel_log_probs_and_entropies
    if tied:
        plan.pop(names[id(embedding)], None)
    if tied and names[id(head)] in plan:
        plan[names[id(embedding)]] = VOCAB_STYLE


def _check_sizes(plan: Mapping[str, str], modules: Mapping[str, nn.Module], config: Any, size: int, name: str) -> None:
    heads = any(path.rpartition(".")[2] in KEY_PROJECTIONS and style == "colwise" for path, style in plan.items())
    counts = {field: getattr(config, field, None) for field in (DIVISIBLE_FIELDS if heads else DIVISIBLE_FIELDS[2:])}
    found = {field: count for field, count in counts.items() if isinstance(count, int)}
    for field, count in found.items():
        if count % size:
            common = gcd(*found.values())
            fitting = ", ".join(str(n) for n in range(1, common + 1) if common % n == 0)
            raise _refused(name, size, f"{field}={count} of its config is not divisible by {size}; tp can be {fitting}")
    for field, share in config.to_dict().items():
        if share and ("dropout" in field or "pdrop" in field) and not field.startswith("classifier"):
            raise _refused(name, size, f"{field}={share} of its config drops other values on every rank; set it to 0")
    for path, style in plan.items():
        module: Any = modules[path]
        count = module.in_features if style in ROW_STYLES else module.out_features if style in COLUMN_STYLES else size
        if count % size:
            what = "input" if style in ROW_STYLES else "output"
            raise _refused(name, size, f"{path} has {count} {what} features, which is not divisible by {size}")


def _check_complete(plan: Mapping[str, str], modules: Mapping[str, nn.Module], size: int, name: str) -> None:
    """Beside modules that hand slices to each other there may be none with parameters that the plan does not name."""
    parents = {path.rpartition(".")[0] for path, style in plan.items() if style in ("colwise", "rowwise")}
    for parent in sorted(parents):
        for path, module in modules.items():
            within = path.startswith(f"{parent}.") and not any(
                path == one or path.startswith(f"{one}.") for one in plan
            )
            if within and next(module.parameters(recurse=False), None) is not None:
                raise _refused(name, size, f"its plan does not say how to cut {path}, which reads slices")


def _refused(name: str, size: int, problem: str) -> ResourceError:
    return ResourceError("HF812", f"the model {name} cannot be cut over the mesh axis tp={size}: {problem}")


# -- what is sliced of a module ----------------------------------------------------------------------------------------


def slice_dims(module: nn.Module) -> dict[str, int]:
    """By the name in ``state_dict()`` the dim of which this rank has a slice."""
    return {
        f"{path}.{name}": dim
        for path, inner in module.named_modules()
        if isinstance(inner, Sliced)
        for name, dim in inner.dims.items()
        if inner._parameters.get(name) is not None
    }


def planned_slice_dims(model: Any, size: int) -> dict[str, int]:
    """The same of a whole model that is going to be cut into ``size`` slices."""
    if size == 1:
        return {}
    return {
        f"{path}.{name}": dim
        for path, style in tensor_parallel_plan(model, size, "").items()
        if style != REPLICATED_STYLE
        for name, dim in LAYERS[style].dims.items()
    }


def sliced_parameters(module: nn.Module) -> set[nn.Parameter]:
    """The parameters of which this rank has a slice."""
    return {module.get_parameter(name) for name in slice_dims(module)}


def parameters_with_partial_gradients(module: nn.Module) -> Iterator[nn.Parameter]:
    """Whole parameters that read slices, so that a rank has a part of their gradient."""
    for inner in module.modules():
        if getattr(inner, "reads_slices", False):
            yield from inner.parameters()
