"""Parameters that the ranks of ``dp`` hold parts of: FSDP2 (Zhao et al., 2023, PyTorch FSDP).

Of a model that is sliced over ``tp``, the parts are those of a slice. What is read outside of an update is read with
all parameters in place, so that ranks need not take the same number of passes then.
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
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.parallel_layers import gathered_slices, local_slice
from hfdsl.rl.models.tensor_parallel import slice_dims
from hfdsl.rl.workers.config import FloatDType


def shard(module: nn.Module, blocks: tuple[str, ...], autocast: FloatDType | None, peers: AxisGroup) -> None:
    """Give every peer a part of the parameters; each module of a class that ``blocks`` names is gathered by itself.

    Raises:
        ResourceError: HF812 where the ranks are no processes of their own.
    """
    if peers.size == 1:
        return
    if peers.process_group is None:
        raise ResourceError(
            "HF812",
            'sharding="fsdp" needs a process for every rank, as on the Ray backend; use sharding="none" elsewhere',
        )
    mesh = DeviceMesh.from_group(peers.process_group, device().type, mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, autocast) if autocast else None, reduce_dtype=torch.float32
    )
    for inner in [inner for inner in module.modules() if type(inner).__name__ in blocks]:
        fully_shard(inner, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    if hasattr(module, "next_logits"):
        register_fsdp_forward_method(module, "next_logits")


@contextmanager
def gathered_parameters(module: nn.Module) -> Iterator[None]:
    """Within this, every rank has all parameters, and may take as many passes as it likes."""
    parts = [inner for inner in module.modules() if isinstance(inner, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not module, recurse=False)


def is_sharded(module: nn.Module) -> bool:
    """Whether ranks hold parts of a module."""
    return isinstance(module, FSDPModule)


def full_state_dict(module: Policy) -> dict[str, Any]:
    """All weights by name, a copy; every peer of ``dp`` and ``tp`` takes part."""
    dims = slice_dims(module)
    weights: dict[str, Any] = {}
    for name, value in module.state_dict().items():
        weights[name] = value.full_tensor() if isinstance(value, DTensor) else value.detach().clone()
        if name in dims:
            weights[name] = gathered_slices(weights[name], module.tp, dims[name])
    return weights


def load_full_state_dict(module: Policy, weights: Mapping[str, torch.Tensor]) -> None:
    """Make whole weights those of a module, of which this rank may hold a part or a slice."""
    own, dims = module.state_dict(), slice_dims(module)
    with torch.no_grad():
        for name, value in weights.items():
            mine = own[name]
            here = local_slice(value, dims[name], module.tp) if name in dims else value
            here = here.to(mine.device, mine.dtype)
            if isinstance(mine, DTensor):
                here = distribute_tensor(here, mine.device_mesh, mine.placements, src_data_rank=None)
            mine.copy_(here)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, which it holds all of where nothing is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def sharded_like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of an optimizer's state, spread as the parameter is; a number is nobody's part."""
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor) or not value.dim():
        return value
    return DTensor.from_local(
        value.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
