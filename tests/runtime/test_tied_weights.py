"""An output layer that is tied to the embedding on one side of a sync: the other side gets it under its own name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.errors import SyncError
from hfdsl.protocols.layouts import ByName, Layout, Parameter, Replicas, Slices, Tied

EMBEDDING, HEAD = Parameter("embed.weight", (8, 4), "float32"), Parameter("head.weight", (8, 4), "float32")
NAMES = {"head.weight": "embed.weight"}
TIED = Tied(Replicas(), NAMES)
VALUES = torch.arange(32.0).view(8, 4)


class Trainer(hf.Worker):
    """Has one tensor of both names."""

    def __init__(self, layout: Layout) -> None:
        self.rows = 8 // self.mesh.tp

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [EMBEDDING]}

    @property
    def table(self) -> dict[str, torch.Tensor]:
        first = self.coordinates.tp * self.rows
        return {"embed.weight": VALUES[first : first + self.rows].clone()}

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, Any]:
        return self.table


class Holding(Trainer):
    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        return self.table


class Alone(hf.Worker):
    """Exports on rank 0."""

    state_parameters = staticmethod(Trainer.state_parameters)

    def __init__(self, layout: Layout) -> None: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, Any]:
        return {"embed.weight": VALUES.clone()}


class Untied(hf.Worker):
    """Has two tensors."""

    def __init__(self, layout: Layout) -> None: ...

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [EMBEDDING, HEAD]}

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, Any]:
        return {"embed.weight": VALUES.clone(), "head.weight": VALUES.clone() + 1}


class Engine(hf.Worker):
    def __init__(self, layout: Layout) -> None:
        self.held: dict[str, torch.Tensor] = {}

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [EMBEDDING, HEAD]}

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout: layout)
    def load(self, weights: dict[str, Any]) -> None:
        self.held = dict(weights)

    @register(Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def names(self) -> list[str]:
        return [name for name, part in self.held.items() if torch.equal(part, VALUES)]

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        return self.held


class TiedEngine(Engine):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout: layout)
    def load(self, weights: dict[str, Any]) -> None:
        self.held = {"embed.weight": weights["embed.weight"]}

    state_parameters = staticmethod(Engine.state_parameters)


UNTIED_ENGINE = Engine, Replicas()


@hf.dataflow
def synced(trainer: Trainer, engine: Engine) -> hf.PerRank[list[str]]:
    hf.sync(trainer, engine)
    return engine.names()


@hf.dataflow
def of_one_rank(trainer: Alone, engine: Engine) -> hf.PerRank[list[str]]:
    hf.sync(trainer, engine)
    return engine.names()


@hf.dataflow
def of_two(trainer: Untied, engine: Engine) -> hf.PerRank[list[str]]:
    hf.sync(trainer, engine)
    return engine.names()


def launched(
    flow: Any, trainer: Any, layout: Layout, mesh: hf.Mesh, *, shared: bool = False, engine: Any = UNTIED_ENGINE
) -> Any:
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(2)]
    places = {"trainer": hf.place(trainer, layout, pool=pools[0], mesh=mesh)}
    places["engine"] = hf.place(*engine, pool=pools[not shared])
    return flow.compile(hf.Deployment(**places)).launch("local")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("flow", "trainer", "layout", "mesh"),
    [
        (synced, Trainer, TIED, hf.Mesh(dp=2)),
        (synced, Holding, TIED, hf.Mesh(dp=2)),
        (of_one_rank, Alone, TIED, hf.Mesh(dp=2)),
        (synced, Trainer, Tied(Slices(0), NAMES), hf.Mesh(tp=2)),
        (synced, Holding, Tied(Slices(0), NAMES), hf.Mesh(tp=2)),
        (synced, Trainer, ByName({"head.*": TIED}), hf.Mesh(dp=2)),
        (synced, Trainer, ByName({"head.*": Tied(Slices(0), NAMES), "*": Slices(0)}), hf.Mesh(tp=2)),
    ],
    ids=str,
)
def test_a_tied_weight_arrives_under_both_names(
    flow: Any, trainer: Any, layout: Layout, mesh: hf.Mesh, shared: bool
) -> None:
    with launched(flow, trainer, layout, mesh, shared=shared) as running:
        assert list(running.step()) == [["embed.weight", "head.weight"]] * 2
        assert running.verify("policy").compared


def test_a_side_that_has_one_of_both_names_is_compared_with_each() -> None:
    engine = TiedEngine, TIED
    with launched(synced, Trainer, TIED, hf.Mesh(dp=2), engine=engine) as running:
        assert list(running.step()) == [["embed.weight"]] * 2
        assert running.verify("policy").compared
    with launched(of_two, Untied, Replicas(), hf.Mesh(dp=2), engine=engine) as running:
        assert list(running.step()) == [["embed.weight"]] * 2
        with pytest.raises(SyncError, match=r"^HF771: 'engine' holds other values of 'head.weight' of 'policy'"):
            running.verify("policy")
