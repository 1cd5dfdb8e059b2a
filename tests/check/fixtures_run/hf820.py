"""Advantages of equal rewards, divided by their deviation."""

from typing import Annotated

import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Scores(hf.Batch):
    reward: hf.f32[B]


class Advantages(hf.Batch):
    values: Annotated[hf.f32[B], hf.finite]


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def advantages(self, scores: Scores) -> Advantages:  # <-
        centered = scores.reward.tensor - scores.reward.tensor.mean()
        # good: return Advantages(values=centered / (centered.std() + 1e-6))
        return Advantages(values=centered / centered.std())  # bad


@hf.dataflow
def program(scores: Scores, critic: Critic) -> Advantages:
    return critic.advantages(scores)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch("local") as running:
    running.step(Scores(reward=torch.tensor([1.0, 2.0, 3.0, 3.0])))
