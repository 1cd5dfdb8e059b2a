"""The program of the worked examples in ``hfdsl.runtime``: two actor ranks, two critic ranks, four rows, one filter."""

from __future__ import annotations

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim):
    """Rows."""


class Rows(hf.Batch):
    x: f32[B]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Rows) -> Rows:
        return Rows(x=prompts.x.tensor + 1)

    @register(Dispatch.DP_PROTO, pad="cycle")
    def update(self, rollout: Rows) -> Rows:
        return Rows(x=rollout.x.tensor * 10)


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def accept(self, rollout: Rows) -> hf.bool_[B]:
        return hf.bool_(rollout.x.tensor > 0)


@hf.dataflow
def filtered(prompts: Rows, actor: Actor, critic: Critic) -> Rows:
    rollout = actor.generate(prompts)
    return actor.update(hf.filter(rollout, critic.accept(rollout)))


def deployment() -> hf.Deployment:
    return hf.Deployment(
        actor=hf.place(Actor, pool=hf.ResourcePool([2], use_gpu=False, name="train")),
        critic=hf.place(Critic, pool=hf.ResourcePool([2], use_gpu=False, name="score")),
    )


def prompts() -> Rows:
    return Rows(x=torch.tensor([1.0, -3.0, 2.0, 4.0]))
