# mypy: disable-error-code="empty-body"
"""Weight syncs count in a plan: with the bytes that a role declares, else as an unknown size, never as none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, Execute, f32, register
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.plan import Edge
from hfdsl.plan.predict import BANDWIDTHS, Duration, predict
from hfdsl.tools.scene import scene

PARAMETERS = 1 << 20
BYTES = 4 * PARAMETERS


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Trainer(hf.Worker):
    def __init__(self, parameters: int) -> None:
        self.parameters = torch.zeros(parameters)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Loss:
        self.parameters += 1
        return Loss(loss=0.0)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return {"all": self.parameters.clone()}

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def norm(self) -> float:
        return float(self.parameters.norm())


class Sized(Trainer):
    @staticmethod
    def state_bytes(parameters: int) -> dict[str, int]:
        return {"policy": 4 * parameters, "critic": 1}


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def log(self, norm: float) -> None: ...


@hf.dataflow
def flow(rows: Rows, trainer: Trainer, engine: Engine) -> Loss:
    hf.sync(trainer, engine)
    return trainer.update(engine.generate(rows))


@hf.dataflow
def with_norm(rows: Rows, trainer: Trainer, engine: Engine) -> Loss:
    engine.log(trainer.norm())
    return trainer.update(rows)


def compiled(trainer: type[Trainer], use_gpu: bool = True, dims: Any = None, split: bool = True) -> CompiledPlan:
    pool = hf.ResourcePool([2], use_gpu, "train")
    deployment = hf.Deployment(
        trainer=hf.place(trainer, PARAMETERS, pool=pool),
        engine=hf.place(Engine, pool=hf.ResourcePool([3], use_gpu, "engine") if split else pool),
    )
    return flow.compile(deployment, {B: 6} if dims is None else dims)


def edge(plan: CompiledPlan, source: str) -> Edge:
    [found_edge] = [edge for edge in plan.edges if plan.node(edge.source).label == source]
    return found_edge


@pytest.mark.parametrize("dims", [{B: 6}, {}])
@pytest.mark.parametrize(("use_gpu", "transport"), [(True, "nccl"), (False, "object store")])
def test_every_rank_that_loads_a_state_receives_its_bytes(use_gpu: bool, transport: str, dims: Any) -> None:
    plan = compiled(Sized, use_gpu, dims)
    weights = edge(plan, "trainer.weights")
    assert (weights.bytes, weights.moved, weights.transport) == (3 * BYTES, 3 * BYTES, transport)
    assert f"<- trainer.weights: 12.0 MiB (4.0 MiB per rank) {transport}" in str(plan)


def test_weights_that_the_exporting_rank_loads_itself_do_not_move() -> None:
    weights = edge(compiled(Sized, split=False), "trainer.weights")
    assert (weights.bytes, weights.moved) == (2 * BYTES, BYTES)


def test_the_sums_and_the_memory_of_a_plan_have_the_weights() -> None:
    text = str(compiled(Sized))
    assert "24 B from the caller, 12.0 MiB between processes" in text
    assert "a process sends up to 4.0 MiB in " in text
    [engine] = [peak for peak in compiled(Sized).peaks if peak.process[0] == "engine"]
    assert engine.bytes >= BYTES


def test_a_state_of_unknown_size_is_never_no_bytes() -> None:
    plan = compiled(Trainer)
    weights = edge(plan, "trainer.weights")
    assert (weights.bytes, weights.moved) == (None, None)
    text = str(plan)
    assert "<- trainer.weights: unknown size nccl" in text
    assert "besides, trainer.weights of unknown size" in text
    assert "payloads of unknown size\n" in text
    assert "unknown size" in {link.amount for link in scene(plan).links}


def test_a_number_counts_as_no_bytes() -> None:
    deployment = compiled(Trainer).deployment
    assert edge(with_norm.compile(deployment, {B: 6}), "trainer.norm").bytes == 0


def test_a_prediction_takes_the_time_of_the_weights() -> None:
    def seconds(trainer: type[Trainer]) -> float:
        plan = compiled(trainer)
        return predict(plan, {step.label: Duration(1.0) for step in plan.steps}).timeline.seconds

    assert seconds(Sized) - seconds(Trainer) == pytest.approx(BYTES / BANDWIDTHS["gpu"])


def test_a_prediction_names_what_it_does_not_count(tmp_path: Path) -> None:
    plan = compiled(Trainer)
    prediction = predict(plan, {step.label: Duration(1.0) for step in plan.steps})
    assert prediction.unsized == ("trainer.weights",)
    sent = [transfer for transfer in prediction.timeline.transfers if transfer.name == "trainer.weights"]
    assert [transfer.bytes for transfer in sent] == [None] * 3
    prediction.timeline.save(tmp_path / "trace.json")
    flows = [event for event in json.loads((tmp_path / "trace.json").read_text("utf-8")) if event.get("ph") == "f"]
    assert [event["args"] for event in flows if event["name"] == "trainer.weights"] == [{}] * 3


def test_a_run_counts_the_bytes_that_the_plan_does() -> None:
    plan = compiled(Sized, use_gpu=False)
    with plan.launch("local") as running:
        running.step(Rows(x=torch.zeros(6)))
        sent = [transfer for transfer in running.timeline.transfers if transfer.name == "trainer.weights"]
    assert [transfer.bytes for transfer in sent] == [BYTES] * 3


@pytest.mark.parametrize("declared", [lambda parameters: {}, lambda: {"policy": 1}, lambda parameters: {"policy": -1}])
def test_a_role_that_cannot_say_has_an_unknown_size(declared: Any) -> None:
    role = type("Odd", (Trainer,), {"state_bytes": staticmethod(declared)})
    assert edge(compiled(role), "trainer.weights").bytes is None
