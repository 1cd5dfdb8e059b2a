"""A role that learns, whose methods say what they do to its state, and one without a state: calls die as files say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.runtime.dying_programs import FOLDER, die


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]


class Scores(hf.Batch):
    y: f32[B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    def __init__(self) -> None:
        self.weight = torch.ones(())

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def draw(self, rows: Rows) -> Rows:
        with (Path(os.environ[FOLDER]) / "drawn").open("a") as file:
            file.write(f"{hf.current_call().step} {self.rank}\n")
        return Rows(x=rows.x.tensor * self.weight + torch.rand(len(rows)))

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, scores: Scores) -> Loss:
        die("actor.update", self)
        self.weight = self.weight - 0.01 * self.axis("dp").all_reduce(scores.y.tensor.sum())
        return Loss(loss=float(self.weight))

    def state(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.weight = state["weight"]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Scores:
        die("judge.score", self)
        return Scores(y=rows.x.tensor - self.axis("dp").all_reduce(rows.x.tensor.sum()))


@hf.dataflow
def learn(rows: Rows, actor: Actor, judge: Judge) -> Loss:
    return actor.update(judge.score(actor.draw(rows)))
