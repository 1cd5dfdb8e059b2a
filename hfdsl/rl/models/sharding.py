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
from hfdsl.rl.models.adapters import Adapter, adapter_names, adapters, base_names
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.parallel_layers import gathered_slices, local_slice
from hfdsl.rl.models.tensor_parallel import slice_dims
from hfdsl.rl.workers.model_config import FloatDType
from hfdsl.runtime.digests import ComputedPart, HeldPart


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
    """Full copies of weights one by one, so that no rank has to hold all of them; each step is a collective.

    With ``merged=False`` they are the base weights, to which ``full_adapter`` adds the adapters.
    """
    state, dims, adapters_by_weight = module.state_dict(), slice_dims(module), adapters(module) if merged else {}
    for name, base_name in base_names(module).items():
        weight = _full(state[name])
        if name in adapters_by_weight:
            adapter = adapters_by_weight[name]
            weight = adapter.merged(weight, _full(state[adapter.a]), _full(state[adapter.b]))
        weight = weight if module.export_dtype is None else weight.to(module.export_dtype)
        yield base_name, gathered_slices(weight, module.tp, dims[name]) if name in dims else weight


def full_adapter(module: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """Full copies of the matrices of a module's adapters by name, one by one; each step is a collective."""
    state = module.state_dict()
    for name, inner in adapter_names(module).items():
        yield name, _full(state[inner])


def adapter_shapes(module: Policy) -> dict[str, tuple[int, ...]]:
    """The names and shapes of ``full_adapter``."""
    state = module.state_dict()
    return {name: tuple(state[inner].shape) for name, inner in adapter_names(module).items()}


def _full(value: torch.Tensor) -> torch.Tensor:
    """A full copy of a tensor, gathered if ranks hold shards."""
    return value.full_tensor() if isinstance(value, DTensor) else value.detach().clone()


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


def held_pieces(module: Policy) -> Iterator[tuple[str, HeldPart]]:
    """The parts of the exported weights that this rank holds, with their offsets in the full weights.

    Those with adapters are merged when they are read. Each rank needs all of the adapters' matrices for it, which are
    gathered if they are sharded: a collective of all peers of ``dp``.
    """
    state, dims, adapted = module.state_dict(), slice_dims(module), adapters(module)
    for name, base_name in base_names(module).items():
        value = state[name]
        offset = [0] * value.dim()
        if name in dims:
            offset[dims[name]] = module.tp.rank * value.shape[dims[name]]
        offset[:1] = [row + _first_row(value) for row in offset[:1]]
        part = local_part(value)
        if name in adapted:
            a, b = (_whole(state[matrix]) for matrix in (adapted[name].a, adapted[name].b))
            if part.numel():
                yield base_name, _merged_part(adapted[name], part, offset[0], a, b, module.export_dtype)
        elif part.numel():
            part = part if module.export_dtype is None else part.to(module.export_dtype)
            yield base_name, HeldPart(part, tuple(offset))


def _merged_part(
    adapter: Adapter, shard: torch.Tensor, first: int, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype | None
) -> ComputedPart:
    """A shard, the rows of a weight from ``first`` on, with its adapter added."""

    def tiles(start: int, stop: int) -> Iterator[tuple[int, torch.Tensor]]:
        with torch.no_grad():
            for row, rows in adapter.tiles(shard[start - first : stop - first], a, b, start):
                yield start + row, rows.to(shard.dtype)

    box = ((first, first + len(shard)), (0, shard.shape[1]))
    return ComputedPart(box, dtype or shard.dtype, shard.device, tiles)


def _whole(value: torch.Tensor) -> torch.Tensor:
    """A matrix, gathered if ranks hold shards, else in its own memory."""
    return value.full_tensor() if isinstance(value, DTensor) else value.detach()


def held_adapter(module: Policy) -> Iterator[tuple[str, HeldPart]]:
    """The parts of the matrices of ``full_adapter`` that this rank holds, in its own memory."""
    state = module.state_dict()
    for name, inner in adapter_names(module).items():
        part = local_part(state[inner])
        if part.numel():
            yield name, HeldPart(part, (_first_row(state[inner]), 0))


def _first_row(value: torch.Tensor) -> int:
    """The first row of a rank's shard: FSDP2 cuts dim 0 as torch.chunk does."""
    if not isinstance(value, DTensor):
        return 0
    return value.device_mesh.get_local_rank() * -(-value.shape[0] // value.device_mesh.size())


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
    with torch.no_grad():
        for name, weight in weights.items():
            target = state[inner.get(name, name)]
            is_full = name in dims and weight.shape != target.shape
            value = local_slice(weight, dims[name], module.tp) if is_full else weight
            value = value.to(target.device, target.dtype)
            if isinstance(target, DTensor):
                # Every rank has the full weight, so each takes its shard without a broadcast.
                value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
            target.copy_(value)


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
