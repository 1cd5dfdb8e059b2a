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


class Stating(Trainer):
    """States both names."""

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [EMBEDDING, HEAD]}


class HoldingStated(Stating):
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


class OneName(TiedEngine):
    """Has no head."""

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [EMBEDDING]}

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout: layout)
    def load(self, weights: dict[str, Any]) -> None:
        self.held = dict(weights)


class Rounding(OneName):
    """Keeps the embedding in another dtype."""

    @staticmethod
    def state_parameters(layout: Layout) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("embed.weight", (8, 4), "bfloat16")]}

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout: layout)
    def load(self, weights: dict[str, Any]) -> None:
        self.held = dict(weights)


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
        (synced, Stating, TIED, hf.Mesh(dp=2)),
        (synced, HoldingStated, TIED, hf.Mesh(dp=2)),
        (of_one_rank, Alone, TIED, hf.Mesh(dp=2)),
        (synced, Trainer, Tied(Slices(0), NAMES), hf.Mesh(tp=2)),
        (synced, HoldingStated, Tied(Slices(0), NAMES), hf.Mesh(tp=2)),
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


class Both(Trainer):
    """Returns one tensor under both names, as ``state_dict`` does; ``turned`` is the rank on which they differ."""

    turned = -1

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout: layout)
    def weights(self) -> dict[str, Any]:
        part = self.table["embed.weight"]
        return {"embed.weight": part, "head.weight": part.flip(0) if self.rank == self.turned else part}

    state_parameters = staticmethod(Trainer.state_parameters)


class Turned(Both):
    turned = 1


class BothEngine(Engine):
    """Holds under both names what comes under one."""

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout: layout)
    def load(self, weights: dict[str, Any]) -> None:
        self.held = dict.fromkeys(("embed.weight", "head.weight"), weights["embed.weight"])

    state_parameters = staticmethod(Trainer.state_parameters)


SLICED = Tied(Slices(0), NAMES)


@pytest.mark.parametrize(
    ("trainer", "layout", "engine", "other_layout"),
    [
        (Both, SLICED, TiedEngine, TIED),
        (Both, SLICED, BothEngine, TIED),
        (Both, SLICED, BothEngine, Tied(Slices(0, "dp"), NAMES)),
        (Trainer, SLICED, BothEngine, Tied(Slices(0, "dp"), NAMES)),
        (Trainer, Slices(0), BothEngine, Tied(Slices(0, "dp"), NAMES)),
        (Both, SLICED, OneName, Slices(0, "dp")),
        (Both, SLICED, Rounding, Slices(0, "dp")),
    ],
    ids=str,
)
def test_parts_of_both_names_are_compared(
    trainer: Any, layout: Layout, engine: Any, other_layout: Layout, recwarn: pytest.WarningsRecorder
) -> None:
    with launched(synced, trainer, layout, hf.Mesh(tp=2), engine=(engine, other_layout)) as running:
        with running.verifying():
            running.step()
        assert running.verify("policy").compared
    assert not recwarn.list


def test_a_tied_part_that_differs_is_found() -> None:
    with launched(synced, Turned, SLICED, hf.Mesh(tp=2), engine=(BothEngine, TIED)) as running:
        running.step()
        with pytest.raises(SyncError, match=r"^HF771: 'engine' holds other values of 'head.weight' of 'policy'"):
            running.verify("policy")


def test_a_side_that_has_one_of_both_names_is_compared_with_each() -> None:
    engine = TiedEngine, TIED
    with launched(synced, Trainer, TIED, hf.Mesh(dp=2), engine=engine) as running:
        assert list(running.step()) == [["embed.weight"]] * 2
        assert running.verify("policy").compared
    with launched(of_two, Untied, Replicas(), hf.Mesh(dp=2), engine=engine) as running:
        assert list(running.step()) == [["embed.weight"]] * 2
        with pytest.raises(SyncError, match=r"^HF771: 'engine' holds other values of 'head.weight' of 'policy'"):
            running.verify("policy")
