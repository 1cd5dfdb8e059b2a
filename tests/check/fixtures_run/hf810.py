"""Rank 0 gives a bonus, and rank 1 does not."""

import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Judged(hf.Batch):
    reward: hf.f32[B]
    bonus: hf.f32[B] | None = None


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Judged:  # <-
        zeros = torch.zeros(len(prompts))
        # good: return Judged(reward=zeros, bonus=hf.f32(zeros))
        return Judged(reward=zeros, bonus=hf.f32(zeros) if self.rank == 0 else None)  # bad


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Judged:
    return critic.score(prompts)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch("local") as running:
    running.step(Prompts(ids=torch.arange(4)))
