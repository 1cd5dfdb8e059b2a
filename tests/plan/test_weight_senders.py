# mypy: disable-error-code="empty-body"
"""Who sends weights from the memory in which it trains, and what copies it could send instead."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.deploy.deployment import TransportName
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.weight_senders import weight_senders, with_copied_weights
from tests.check.prelude import B, Dispatch, Prompts, Rollout, register


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, list[float]]) -> None: ...


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, rollout: Rollout) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, list[float]]: ...


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Rollout: ...


@hf.dataflow
def unjudged(prompts: Prompts, engine: Engine, trainer: Trainer) -> Rollout:
    result = trainer.update(hf.queue(engine.generate(prompts), lag=2, late="wait"))
    hf.sync(trainer, engine)
    return result


@hf.dataflow
def judged(prompts: Prompts, engine: Engine, trainer: Trainer, judge: Judge) -> Rollout:
    result = judge.score(trainer.update(hf.queue(engine.generate(prompts), lag=2, late="wait")))
    hf.sync(trainer, engine)
    return result


def pool(name: str, *, gpus: bool = True) -> hf.ResourcePool:
    return hf.ResourcePool([2], use_gpu=gpus, name=name)


def plan_of(program: Any, transport: TransportName | None = None, **others: Any) -> CompiledPlan:
    trainer = hf.place(Trainer, pool=pool("trainers"), transport=transport)
    places = hf.Deployment(engine=hf.place(Engine, pool=pool("engines")), trainer=trainer, **others)
    compiled: CompiledPlan = program.compile(places, {B: 64})
    return compiled


@pytest.mark.parametrize(
    ("program", "judge", "transport"),
    [
        (unjudged, {}, "cuda ipc"),
        (judged, {"judge": hf.place(Judge, pool=pool("judges"))}, "cuda ipc"),
        (judged, {"judge": hf.place(Judge, pool=pool("hosts", gpus=False))}, "object store"),
    ],
    ids=["weights alone", "results for GPUs, too", "results for a host, too"],
)
def test_copies_go_by_a_transport_that_reaches_all_readers_of_the_role(
    program: Any, judge: dict[str, Any], transport: TransportName
) -> None:
    plan = plan_of(program, **judge)
    copied = with_copied_weights(plan)
    assert copied is not None
    assert (copied.roles, copied.transport) == (("trainer",), transport)
    assert not weight_senders(copied.plan)
    stated = plan_of(program, transport, **judge)  # which the check of a compilation accepts
    assert not weight_senders(stated)
    assert with_copied_weights(stated) is None
