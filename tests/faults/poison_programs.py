"""A program, with a queue and without, of which one row ends the process of the judge that scores it."""

from __future__ import annotations

import os
import signal
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.queueing import Late

POISON = 13
"""The number of a prompt: of step 3, the second one."""

PER_STEP, SAMPLES = 4, 2


class B(hf.Dim): ...


class Prompts(hf.Batch):
    number: f32[B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["sum"]]


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Prompts:
        return prompts


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rollout: Prompts) -> Prompts:
        if POISON in rollout.number.tensor:
            if os.environ["POISON"] == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return rollout


class Actor(hf.Worker):
    def __init__(self) -> None:
        self.weight = torch.ones(())

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, scores: Prompts) -> Loss:
        self.weight = self.weight + scores.number.tensor.sum()
        return Loss(loss=float(self.weight))

    def state(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.weight = state["weight"]


@hf.dataflow
def queued(prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, late: Late = "wait") -> Loss:
    scores = judge.score(engine.generate(hf.repeat(prompts, SAMPLES)))
    return actor.update(hf.queue(scores, lag=1, late=late, group=SAMPLES))


def poisoned(late: Late) -> CompiledPlan:
    """Each role has a pool of two processes."""
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(3)]
    deployment = hf.Deployment(
        engine=hf.place(Engine, pool=pools[0]),
        judge=hf.place(Judge, pool=pools[1]),
        actor=hf.place(Actor, pool=pools[2]),
    )
    return queued.given(late=late).compile(deployment, dims={B: PER_STEP})


def batches() -> list[Prompts]:
    """One for each of six steps."""
    return [Prompts(number=torch.arange(4.0) + PER_STEP * step) for step in range(6)]
