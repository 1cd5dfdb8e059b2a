"""The parts of a policy's exported weights that a rank holds: their places are looked up once, their tensors each time.

An example
----------
A layer of two parameters, sliced over ``tp=2`` and sharded over ``dp=2``, on the rank ``tp=1 dp=0``::

    exported               module          slice             its shard        HeldPart
    layers.0.up.weight     layers.0.up     rows 4 to 8       rows 0 to 2      rows 4 to 6
    layers.0.down.weight   layers.0.down   columns 4 to 8    rows 0 to 2      rows 0 to 2, columns 4 to 8

A walk over all modules takes longer than sending their parameters. Modules, names and slices stay; a parameter may be
another tensor at the next call, as FSDP and offloads replace it, so no tensor is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from hfdsl.rl.models.adapters import Adapter, adapter_names, adapters, base_names
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.sharding import local_part
from hfdsl.rl.models.tensor_parallel import slice_dims
from hfdsl.runtime.weights.held_parts import ComputedPart, HeldPart


@dataclass(frozen=True, slots=True)
class _Place:
    """A parameter or buffer: the ``tensors`` of its module, its name there, and the dim by which ``tp`` slices it."""

    tensors: Mapping[str, torch.Tensor | None]
    leaf: str
    dim: int | None = None

    @property
    def tensor(self) -> torch.Tensor:
        tensor = self.tensors[self.leaf]
        if tensor is None:
            raise TypeError(self.leaf)
        return tensor


class HeldWeights:
    """The held weights of a policy that has its shards and adapters; of its ``adapter`` alone where that is exported.

    Weights with adapters are merged when they are read. For this, each rank needs the whole matrices of the adapters,
    which are gathered if they are sharded: ``pieces`` is then a collective of all peers of ``dp``.
    """

    def __init__(self, module: Policy, *, adapter: bool = False) -> None:
        self._module, self._adapter, dims = module, adapter, slice_dims(module)
        places = {name: _place(module, name, dims.get(name)) for name in module.state_dict()}
        self._units = [inner for inner in module.modules() if isinstance(inner, FSDPModule)]
        self._adapted: dict[str, tuple[Adapter, _Place, _Place]] = {}
        if adapter:
            self._places = {name: places[inner] for name, inner in adapter_names(module).items()}
            return
        names = base_names(module)
        self._places = {base_name: places[name] for name, base_name in names.items()}
        for name, merged in adapters(module).items():
            self._adapted[names[name]] = merged, places[merged.a], places[merged.b]

    def pieces(self) -> dict[str, HeldPart]:
        """The parts as they are now, by name, with their offsets in the full weights; empty ones are left out."""
        for unit in self._units:
            unit.reshard()
        return dict(self._pieces())

    def _pieces(self) -> Iterator[tuple[str, HeldPart]]:
        rank, dtype = self._module.tp.rank, None if self._adapter else self._module.export_dtype
        for name, place in self._places.items():
            value, dim = place.tensor, place.dim
            offset = [0] * value.dim()
            if dim is not None:
                offset[dim] = rank * value.shape[dim]
            if isinstance(value, DTensor):
                part = local_part(value)
                offset[0] += _first_row(value)
            else:
                part = value.detach() if value.requires_grad else value
            if name in self._adapted:
                adapter, *matrices = self._adapted[name]
                a, b = (_whole(matrix.tensor) for matrix in matrices)
                if part.numel():
                    yield name, _merged_part(adapter, part, offset[0], a, b, dtype)
            elif part.numel():
                yield name, HeldPart(part if dtype is None else part.to(dtype), tuple(offset))


def _place(module: nn.Module, name: str, dim: int | None) -> _Place:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    return _Place(owner._parameters if leaf in owner._parameters else owner._buffers, leaf, dim)


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
    """A matrix, gathered if ranks hold shards, otherwise without a copy."""
    return value.full_tensor() if isinstance(value, DTensor) else value.detach()


def _first_row(value: DTensor) -> int:
    """The first row of a rank's shard: FSDP2 cuts dim 0 as torch.chunk does."""
    return value.device_mesh.get_local_rank() * -(-value.shape[0] // value.device_mesh.size())
