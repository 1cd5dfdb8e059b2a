"""A trainer that returns the tensors that it updates in place, and an engine that writes into what it gets."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

import hfdsl as hf
from hfdsl import Dispatch, Execute
from hfdsl.protocols.layouts import Layout, Parameter


class Base(hf.Worker):
    """Trains tensors in place."""

    def __init__(self, layout: Layout | None = None, stated: bool = True) -> None:
        self.weight = torch.zeros(4)
        self.table = OrderedDict(up=self.weight, tied=self.weight, nested=[self.weight])

    @staticmethod
    def state_parameters(layout: Layout | None = None, stated: bool = True) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("up", (4,), "float32")]} if stated else {}

    @hf.register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def update(self) -> float:
        self.weight.add_(1)
        return float(self.weight[0])


class Trainer(Base):
    """Returns them on each rank, with a layout."""

    @hf.register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout=None, stated=True: layout)
    def weights(self) -> dict[str, Any]:
        return self.table


class Holder(Trainer):
    """Says what it holds, which are the tensors that it returns."""

    def held_weights(self, state: str) -> dict[str, Any]:
        return {"up": self.weight}


class Alone(Base):
    """Returns them on rank 0, without a layout."""

    @hf.register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return self.table


class Engine(hf.Worker):
    @hf.register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.table = weights

    @hf.register(Dispatch.ONE_TO_ALL)
    def kept(self, updated: float) -> list[float]:
        """The weights after an update, and what comes of a write into them: they are the rank's own."""
        values = [float(self.table["up"][0])]
        self.table["up"].sub_(100 * (self.rank + 1))
        return [*values, *(float(tensor[0]) for tensor in (self.table["tied"], self.table["up"]))]


@hf.dataflow
def joined(trainer: Trainer, engine: Engine) -> hf.PerRank[list[float]]:
    hf.sync(trainer, engine)
    return engine.kept(trainer.update())


@hf.dataflow
def alone(trainer: Alone, engine: Engine) -> hf.PerRank[list[float]]:
    hf.sync(trainer, engine)
    return engine.kept(trainer.update())
