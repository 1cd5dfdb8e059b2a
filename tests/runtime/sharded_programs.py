"""Trainers whose weights are DTensors: shards over ``dp`` of their slices, replicated, or partial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import hfdsl as hf
from hfdsl.protocols.layouts import Parameter, Shards
from tests.runtime import resharding_programs as p

PLACEMENTS = {"shard": Shard(0), "replicate": Replicate(), "partial": Partial()}


def mesh_of(coordinate: int) -> DeviceMesh:
    """A mesh of two ranks in which this process, whose rank is 0, has a coordinate."""
    return DeviceMesh("cpu", [0, 1] if coordinate == 0 else [1, 0])


def distributed(part: torch.Tensor, mesh: DeviceMesh, how: str) -> DTensor:
    """A rank's part as a DTensor over ``mesh``, without any communication."""
    return DTensor.from_local(part, mesh, [PLACEMENTS[how]], run_check=False)


class Sharded(p.Trainer):
    """The same as plain tensors, in the mesh of one process: a shard is never looked at from another rank."""

    how = "shard"

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=p.declared)
    def weights(self) -> dict[str, Any]:
        mesh = mesh_of(self.mesh.coordinates(self.rank).dp)
        return {name: distributed(nn.Parameter(part), mesh, self.how) for name, part in self.table.items()}

    @staticmethod
    def state_parameters(layout: Any, step: int = 0) -> dict[str, list[Parameter]]:
        return {"policy": p.PARAMETERS}


class PartialSums(Sharded):
    how = "partial"


class Whole(p.Side):
    """Rank 0 exports for all."""

    how = "shard"

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        mesh = DeviceMesh("cpu", [0, 1])
        return {name: distributed(part, mesh, self.how) for name, part in self.table.items()}


class WholeReplicas(Whole):
    how = "replicate"


class ShardedMemory(p.Holding):
    """An engine whose memory is a DTensor's."""

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        mesh = mesh_of(self.rank)
        return {name: distributed(part, mesh, "shard") for name, part in self.table.items()}

    @contextmanager
    def receiving(self, state: str) -> Iterator[Mapping[str, torch.Tensor]]:
        yield self.held_weights(state)
        self.loads += 1


@hf.dataflow
def whole_sync(actor: Whole, engine: p.Engine) -> hf.PerRank[bool]:
    hf.sync(actor, engine)
    return engine.kept()


class Fsdp(hf.Worker):
    """A model that FSDP2 has sharded; the last rank has no row of the small weight."""

    ROWS = (7, 2)

    def __init__(self) -> None:
        self.model = nn.Sequential(*(nn.Linear(3, rows, bias=False) for rows in self.ROWS))
        for layer, rows in zip(self.model, self.ROWS, strict=True):
            layer.weight.data = torch.arange(3.0 * rows).view(rows, 3)
        mesh = DeviceMesh.from_group(self.axis("dp").process_group, "cpu", mesh_dim_names=("dp",))
        fully_shard(self.model, mesh=mesh)

    @staticmethod
    def state_parameters() -> dict[str, list[Parameter]]:
        return {"policy": [Parameter(f"{i}.weight", (rows, 3), "float32") for i, rows in enumerate(Fsdp.ROWS)]}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=Shards("dp"))
    def weights(self) -> dict[str, Any]:
        return self.model.state_dict()

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def update(self) -> None:
        for parameter in self.model.parameters():
            parameter.data += 1


class Copy(hf.Worker):
    def __init__(self) -> None:
        self.table: dict[str, torch.Tensor] = {}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.table = weights

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        return self.table

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def same(self) -> bool:
        step = hf.current_call().step
        expected = [torch.arange(3.0 * rows).view(rows, 3) + step for rows in Fsdp.ROWS]
        return all(torch.equal(self.table[f"{i}.weight"], weight) for i, weight in enumerate(expected))


@hf.dataflow
def fsdp(actor: Fsdp, engine: Copy) -> hf.PerRank[bool]:
    hf.sync(actor, engine)
    same = engine.same()
    actor.update()
    return same
