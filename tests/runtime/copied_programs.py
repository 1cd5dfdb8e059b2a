"""Roles that export or hold other tensors beside the weights of a sync, or a part of them, or pad rows."""

from __future__ import annotations

from typing import Any

import torch

import hfdsl as hf
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, Slices

WEIGHTS = {"embedding": torch.arange(40.0).view(10, 4) / 7, "bias": torch.tensor([0.3, 0.7, 1.1])}
PARAMETERS = [Parameter(name, tuple(weight.shape), "float32") for name, weight in WEIGHTS.items()]
PADDED = Slices(0, padding=8)
"""On four ranks the last one has pad rows alone, of both weights."""


class Actor(hf.Worker):
    """States what it states, and exports a buffer beside it."""

    def __init__(self, states: tuple[str, ...] = (), buffers: tuple[str, ...] = ()) -> None:
        self.table = {name: weight.clone() for name, weight in WEIGHTS.items()}
        self.table |= {name: torch.ones(2) for name in buffers}

    @staticmethod
    def state_parameters(states: tuple[str, ...] = (), buffers: tuple[str, ...] = ()) -> dict[str, list[Parameter]]:
        return {"policy": [each for each in PARAMETERS if each.name in states]} if states else {}

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return self.table

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def update(self) -> None:
        self.table["bias"] += 1


class Engine(hf.Worker):
    """Empty before its first sync; loads ``loads``, in a dtype, and has buffers that are zero."""

    def __init__(
        self,
        states: tuple[str, ...] = (),
        buffers: tuple[str, ...] = (),
        loads: tuple[str, ...] = tuple(WEIGHTS),
        dtype: str = "float32",
    ) -> None:
        self.loads, self.buffers, self.dtype = loads, buffers, getattr(torch, dtype)
        self.table: dict[str, Any] = {}

    @staticmethod
    def state_parameters(
        states: tuple[str, ...] = (),
        buffers: tuple[str, ...] = (),
        loads: tuple[str, ...] = (),
        dtype: str = "float32",
    ) -> dict[str, list[Parameter]]:
        return Actor.state_parameters(states)

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.table = {name: weights[name].to(self.dtype, copy=True) for name in self.loads}
        self.table |= {name: torch.zeros(2) for name in self.buffers}

    def state(self) -> dict[str, Any]:
        return self.table

    def load_state(self, state: dict[str, Any]) -> None:
        self.table = state


class Holding(Engine):
    def held_weights(self, state: str) -> dict[str, Any]:
        return self.table


@hf.dataflow
def synced(actor: Actor, engine: Engine) -> None:
    hf.sync(actor, engine)


@hf.dataflow
def learned(actor: Actor, engine: Engine) -> None:
    hf.sync(actor, engine)
    actor.update()


class Side(hf.Worker):
    """Keeps its part of every weight; ``pads`` says which ranks have pad rows, too, and what of it is in memory."""

    def __init__(self, layout: Layout, pads: str) -> None:
        self.layout, self.pads = layout, pads
        self.table = self.parts()

    @staticmethod
    def state_parameters(layout: Layout, pads: str) -> dict[str, list[Parameter]]:
        return {"policy": PARAMETERS}

    def parts(self) -> dict[str, torch.Tensor]:
        parts: dict[str, torch.Tensor] = {}
        for parameter in PARAMETERS:
            weight = WEIGHTS[parameter.name]
            for box in self.layout.boxes(parameter, self.mesh, self.rank):
                parts[parameter.name] = weight[tuple(slice(*extent) for extent in box)].clone()
            if self.layout is PADDED and self.pads != "absent":
                rows = 4 if parameter.name == "embedding" else 2
                parts[parameter.name] = self.padded(parts.get(parameter.name, weight[:0]), rows)
        return parts

    def padded(self, part: torch.Tensor, rows: int) -> torch.Tensor:
        if self.pads == "empty" or (self.pads == "alone" and len(part)):
            return part
        return torch.cat([part, part.new_full((rows - len(part), *part.shape[1:]), -1.0)])


class PaddedActor(Side):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout, pads: layout)
    def weights(self) -> dict[str, Any]:
        return self.table


class PaddedEngine(Side):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout, pads: layout)
    def load(self, weights: dict[str, Any]) -> None:
        for name, weight in weights.items():
            self.table[name][: len(weight)] = weight

    def held_weights(self, state: str) -> dict[str, Any]:
        return self.table


@hf.dataflow
def padded(actor: PaddedActor, engine: PaddedEngine) -> None:
    hf.sync(actor, engine)


def places(layout: Layout) -> hf.Mesh:
    return hf.Mesh(dp=4) if isinstance(layout, Replicas) else hf.Mesh(tp=4)
