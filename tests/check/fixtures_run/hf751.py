"""A program whose stages step on their own is launched as one that has steps."""

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
    def score(self, prompts: Prompts) -> Scores:
        return Scores(reward=torch.zeros(len(prompts)))


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Scores:
    # good: return critic.score(hf.queue(prompts))
    return critic.score(hf.queue(prompts, lag=0))  # bad


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch() as running:  # <-
    running.step(Prompts(ids=torch.arange(4)))
