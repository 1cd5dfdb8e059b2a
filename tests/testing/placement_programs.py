"""A program whose critic numbers rows as its rank sees them: right on one rank, wrong on several."""

from __future__ import annotations

from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rollout(hf.Batch):
    ids: i64[B, R]
    log_probs: f32[B, R]


class Values(hf.Batch):
    values: f32[B, R]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, rollout: Rollout) -> Rollout:
        draws = hf.current_call().uniforms(rollout.ids.tensor.shape[1])
        return Rollout(ids=(draws * 100).long(), log_probs=-draws)

    @register(Dispatch.THREE_D_PROTO)
    def update(self, values: Values) -> Loss:
        return Loss(loss=float(values.values.tensor.mean()))


class Critic(hf.Worker):
    def __init__(self, wrong: bool = False, raises: bool = False) -> None:
        self.wrong, self.raises = wrong, raises

    @register(Dispatch.THREE_D_PROTO)
    def values(self, rollout: Rollout) -> Values:
        if self.raises and self.world_size > 1:
            raise ValueError("no values here")
        values = rollout.log_probs.tensor.clone()
        if self.wrong and len(values):
            values[-1, 1] += torch.arange(len(values))[-1]  # the last row by its place on the rank
        return Values(values=values)

    @register(Dispatch.ONE_TO_ALL)
    def ranks(self) -> list[int]:
        return [self.rank, self.world_size]


@hf.dataflow
def program(rollout: Rollout, actor: Actor, critic: Critic) -> tuple[Loss, hf.PerRank[list[int]]]:
    values = critic.values(actor.generate(rollout))
    return actor.update(values), critic.ranks()


def batch(rows: int = 4) -> Rollout:
    return Rollout(ids=torch.zeros(rows, 3, dtype=torch.int64), log_probs=torch.zeros(rows, 3))


def deployment(dp: int, *, wrong: bool = False, raises: bool = False) -> hf.Deployment:
    pool = hf.ResourcePool([dp], use_gpu=False)
    return hf.Deployment(actor=hf.place(Actor, pool=pool), critic=hf.place(Critic, wrong, raises, pool=pool))
