# mypy: disable-error-code="arg-type"
"""A backend that there is not."""

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
    return critic.score(prompts)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
# good: with program.compile(deployment).launch("local") as running:
with program.compile(deployment).launch("slurm") as running:  # <- bad
    running.step(Prompts(ids=torch.arange(4)))
