"""A body that returns one row, however many it is given."""

import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Scores:  # <-
        # good: return Scores(reward=torch.zeros(len(prompts)))
        return Scores(reward=torch.zeros(1))  # bad


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Scores:
    return critic.score(prompts)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch("local") as running:
    running.step(Prompts(ids=torch.arange(4)))
