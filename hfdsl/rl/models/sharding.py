"""Parameters sharded over the ranks of ``dp`` with FSDP2 (Zhao et al., 2023, PyTorch FSDP).

If a model is also sliced over ``tp``, a rank's shard is a part of its slice. FSDP gathers parameters within each pass,
so all ranks have to run the same number of passes. Updates do; outside of them, ``gathered_parameters`` gathers
everything first, so that ranks with more micro-batches or longer responses may run more passes than others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from hfdsl.errors import ResourceError
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.engines.weights import fitting
from hfdsl.rl.models.adapters import adapter_names, adapters, base_names
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.parallel_layers import gathered_slices, local_slice
from hfdsl.rl.models.shard_gathering import full_values
from hfdsl.rl.models.tensor_parallel import slice_dims
from hfdsl.rl.workers.model_config import FloatDType
from hfdsl.runtime.copying import copy_all


def shard(
    module: Policy | Scorer,
    blocks: tuple[str, ...],
    autocast: FloatDType | None,
    peers: AxisGroup,
    *,
    master_weights: bool = False,
) -> None:
    """Shard the parameters over all peers; FSDP gathers each module whose class is in ``blocks`` as a unit.

    With ``master_weights``, shards are float32, and are gathered and exported in the parameters' former dtype.

    Raises:
        ResourceError: HF812 if ranks share a process.
    """
    if peers.size == 1:
        return
    if peers.process_group is None:
        raise ResourceError(
            "HF812",
            'sharding="fsdp" needs a process for every rank, as on the Ray backend; use sharding="none" elsewhere',
        )
    mesh = DeviceMesh.from_group(peers.process_group, device().type, mesh_dim_names=("dp",))
    computes = getattr(torch, autocast) if autocast else None
    if master_weights:
        computes = module.export_dtype = next(module.parameters()).dtype
        for parameter in module.parameters():
            parameter.data = parameter.data.float()
    policy = MixedPrecisionPolicy(param_dtype=computes, reduce_dtype=torch.float32)
    for inner in [inner for inner in module.modules() if type(inner).__name__ in blocks]:
        fully_shard(inner, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    if hasattr(module, "next_logits"):
        register_fsdp_forward_method(module, "next_logits")


@contextmanager
def gathered_parameters(module: nn.Module) -> Iterator[None]:
    """Gather all parameters on every rank within this context, so that each may run any number of passes."""
    units = [inner for inner in module.modules() if isinstance(inner, FSDPModule)]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
            # FSDP's default: the root keeps its parameters from forward to backward, blocks do not.
            unit.set_reshard_after_forward(unit is not module, recurse=False)


def is_sharded(module: nn.Module) -> bool:
    """Whether a module's parameters are sharded over ``dp``."""
    return isinstance(module, FSDPModule)


def full_state_dict(module: Policy) -> dict[str, Any]:
    """Copies of all weights by name, with adapters merged; a collective of all peers of ``dp`` and ``tp``."""
    return dict(full_weights(module))


def full_weights(module: Policy | Scorer, *, merged: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Full copies of weights one by one, so that no rank has to hold all of them; a collective of all that hold parts.

    With ``merged=False`` they are the base weights, to which ``full_adapter`` adds the adapters.
    """
    state, dims, adapters_by_weight = module.state_dict(), slice_dims(module), adapters(module) if merged else {}
    names = base_names(module)
    needed = {name: [name] for name in names}
    for name, adapter in adapters_by_weight.items():
        needed[name] += [adapter.a, adapter.b]
    values = full_values(state[part] for parts in needed.values() for part in parts)
    for name, base_name in names.items():
        weight = next(values)
        if name in adapters_by_weight:
            weight = adapters_by_weight[name].merged(weight, next(values), next(values))
        weight = weight if module.export_dtype is None else weight.to(module.export_dtype)
        yield base_name, gathered_slices(weight, module.tp, dims[name]) if name in dims else weight


def full_adapter(module: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """Full copies of the matrices of a module's adapters by name; a collective of all that hold parts."""
    state, names = module.state_dict(), adapter_names(module)
    yield from zip(names, full_values(state[inner] for inner in names.values()), strict=True)


def adapter_shapes(module: Policy) -> dict[str, tuple[int, ...]]:
    """The names and shapes of ``full_adapter``."""
    state = module.state_dict()
    return {name: tuple(state[inner].shape) for name, inner in adapter_names(module).items()}


def full_shapes(module: Policy) -> dict[str, tuple[int, ...]]:
    """The names and shapes of ``full_weights``."""
    state, dims = module.state_dict(), slice_dims(module)
    shapes = {}
    for name, base_name in base_names(module).items():
        sizes = list(state[name].shape)
        if name in dims:
            sizes[dims[name]] *= module.tp.size
        shapes[base_name] = tuple(sizes)
    return shapes


def check_full_state_dict(module: Policy, weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights, full or this rank's slices, that are not exactly those of a module, or of its adapter if any.

    Raises:
        WiringError: HF956.
    """
    shapes = adapter_shapes(module) if adapter_names(module) else full_shapes(module)
    state = module.state_dict()
    for name in slice_dims(module).keys() & weights.keys() & shapes.keys():
        if weights[name].shape == state[name].shape:
            shapes[name] = tuple(state[name].shape)
    for _ in fitting(weights.items(), shapes, "copy of the policy"):
        pass


def load_full_state_dict(module: Policy, weights: Mapping[str, torch.Tensor]) -> None:
    """Load weights or an adapter, full or this rank's slices, into a module that this rank may hold in part."""
    state, dims = module.state_dict(), slice_dims(module)
    inner = adapter_names(module)
    targets, values = list[torch.Tensor](), list[torch.Tensor]()
    with torch.no_grad():
        for name, weight in weights.items():
            target = state[inner.get(name, name)]
            is_full = name in dims and weight.shape != target.shape
            value = local_slice(weight, dims[name], module.tp) if is_full else weight
            if isinstance(target, DTensor):
                # Every rank has the full weight, so each takes its shard without a broadcast.
                value = value.to(target.device, target.dtype)
                target.copy_(distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None))
            else:
                targets.append(target)
                values.append(value)
        copy_all(targets, values)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor, or the whole tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def sharded_like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's shard of an optimizer's state, in the layout of the parameter; numbers are not sharded."""
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor) or not value.dim():
        return value
    return DTensor.from_local(
        value.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
