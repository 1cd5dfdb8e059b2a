# mypy: disable-error-code="empty-body"
"""Weights that ranks export in parts: who gets them joined, and who would get those of one rank."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from hfdsl.protocols.layouts import ByName, Generation, Layout, Parameter, Replicas, Shards, Slices, Stages, Tied

Weights = dict[str, Any]
SLICES, TP = Slices(0), hf.Mesh(tp=2)


class Exporter(hf.Worker):
    """Says nothing of its parameters."""

    def __init__(self, layout: Layout | None = SLICES) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout=SLICES: layout)
    def weights(self) -> Weights: ...


class Trainer(Exporter):
    @staticmethod
    def state_parameters(layout: Layout | None = SLICES) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("embed.weight", (8, 4)), Parameter("model.layers.1.up.weight", (8, 4))]}


class Holding(Trainer):
    """Its method may return whole weights: a sync takes those that it holds."""

    def held_weights(self, state: str) -> Weights: ...


class OfRankZero(hf.Worker):
    state_parameters = staticmethod(Trainer.state_parameters)

    def __init__(self, layout: Layout | None = SLICES) -> None: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy", layout=lambda mesh, layout=SLICES: layout)
    def weights(self) -> Weights: ...


class Engine(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None: ...


class Unknown(Engine):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh: None)
    def load(self, weights: Weights) -> None: ...


class Splitting(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None: ...


class FirstAlone(hf.Worker):
    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.loads("policy")
    def load(self, weights: Weights) -> None: ...


class Versioned(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: Weights, version: int) -> None: ...


@hf.function
def halved(weights: Weights) -> Weights: ...


@hf.dataflow
def synced(trainer: Exporter, engine: Engine) -> None:
    hf.sync(trainer, engine)


@hf.dataflow
def split(trainer: Exporter, engine: Splitting) -> None:
    hf.sync(trainer, engine)


@hf.dataflow
def of_rank_zero(trainer: OfRankZero, engine: FirstAlone) -> Weights:
    hf.sync(trainer, engine)
    return trainer.weights()


@hf.dataflow
def beside(trainer: Exporter, engine: Engine, first: FirstAlone) -> None:
    hf.sync(trainer, engine, first)


@hf.dataflow
def versioned(trainer: Exporter, engine: Versioned) -> None:
    engine.load(trainer.weights(), 3)  # type: ignore[arg-type]


@hf.dataflow
def changed(trainer: Exporter, engine: Engine) -> None:
    engine.load(halved(trainer.weights()))  # type: ignore[arg-type]


@hf.dataflow
def returned(trainer: Exporter, engine: Engine) -> Weights:
    weights = trainer.weights()
    engine.load(weights)  # type: ignore[arg-type]
    return weights  # type: ignore[return-value]


def losing(flow: Any, trainer: Any, mesh: hf.Mesh = TP, **engines: Any) -> list[str]:
    """The readers that would get the weights of one rank."""
    pools = [hf.ResourcePool([size], name=name) for size, name in ((mesh.world_size, "train"), (2, "engines"))]
    roles = {name: hf.place(role, pool=pools[1]) for name, role in engines.items()}
    report = flow.check(hf.Deployment(trainer=hf.place(*trainer, pool=pools[0], mesh=mesh), **roles))
    assert {finding.code for finding in report.errors} <= {"HF403"}, str(report)
    return [finding.message.rpartition(", and ")[2].partition(" would")[0] for finding in report.errors]


@pytest.mark.parametrize(
    ("flow", "engines", "expected"),
    [
        (synced, {"engine": Engine}, []),
        (synced, {"engine": Unknown}, ["'engine.load'"]),
        (split, {"engine": Splitting}, ["'engine.load'"]),
        (beside, {"engine": Engine, "first": FirstAlone}, ["'first.load'"]),
        (versioned, {"engine": Versioned}, ["'engine.load'"]),
        (changed, {"engine": Engine}, ["'halved'"]),
        (returned, {"engine": Engine}, ["the caller of the dataflow"]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_readers_that_cannot_get_parts(flow: Any, engines: dict[str, Any], expected: list[str]) -> None:
    assert losing(flow, (Trainer,), **engines) == expected
    assert losing(flow, (Trainer, Replicas()), **engines) == []  # one rank has all of it
    assert losing(flow, (Trainer,), hf.Mesh(dp=2), **engines) == []
    assert losing(flow, (Holding,), **engines) == []  # its method may return all


def test_a_method_of_rank_zero_returns_all() -> None:
    assert losing(of_rank_zero, (OfRankZero,), engine=FirstAlone) == []


@pytest.mark.parametrize(
    ("layout", "mesh", "is_cut"),
    [
        (Slices(0), TP, True),
        (ByName({"embed.*": Slices(0)}), TP, True),
        (ByName({"bias": Slices(0)}), TP, False),
        (Tied(Slices(0), {"head": "embed.weight"}), TP, True),
        (Replicas().then(Shards("dp")), hf.Mesh(dp=2), True),
        (Replicas().then(Shards("dp")), TP, False),
        (Generation(Slices(0)), hf.Mesh(tp=2, gen_tp=1), False),
        (Stages(2), hf.Mesh(pp=2), True),
        (Slices(0, blocks=(4, 4), interleaved=2), hf.Mesh(), True),  # all of it, in an order of its own
        (None, TP, False),
    ],
    ids=str,
)
def test_layouts_that_leave_a_part(layout: Layout | None, mesh: hf.Mesh, is_cut: bool) -> None:
    assert losing(changed, (Trainer, layout), mesh, engine=Engine) == ["'halved'"] * is_cut


@pytest.mark.parametrize("layout", [Slices(0), Replicas().then(Shards("tp")), Tied(Slices(0), {"head": "embed"})])
def test_parts_of_parameters_that_nobody_states(layout: Layout) -> None:
    """HF738 is for those that may be whole."""
    assert losing(synced, (Exporter, layout), engine=Engine) == ["'engine.load'"]
    assert losing(synced, (Exporter, layout), hf.Mesh(), engine=Engine) == []
    assert losing(synced, (Exporter, ByName({"a": Slices(0)})), engine=Engine) == []


class Misstated(Trainer):
    @staticmethod
    def state_parameters(layout: Layout | None = SLICES) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("embed.weight", (8, 4), "fp32")]}


def test_parameters_that_cannot_be_stated_are_one_mistake() -> None:
    places = {
        "trainer": hf.place(Misstated, pool=hf.ResourcePool([2], use_gpu=False), mesh=TP),
        "engine": hf.place(Engine, pool=hf.ResourcePool([2], use_gpu=False, name="engines")),
    }
    [finding] = synced.check(hf.Deployment(**places)).findings
    assert finding.code == "HF739"
    assert finding.message.startswith("'state_parameters' of 'trainer' raises an error: the dtype of 'embed.weight'")
