"""A step after one that failed: the weights may be those of several steps."""

from contextlib import suppress

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
        if int(prompts.ids.tensor.max()) > 100:
            raise ValueError("an id that the tokenizer does not have")
        return Scores(reward=torch.zeros(len(prompts)))


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Scores:
    return critic.score(prompts)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
plan = program.compile(deployment)
# good: with plan.launch("local") as running, suppress(hf.RoleError):
# good:     running.step(Prompts(ids=torch.arange(4) * 99))
with plan.launch("local") as running:
    with suppress(hf.RoleError):  # bad
        running.step(Prompts(ids=torch.arange(4) * 99))  # bad
    running.step(Prompts(ids=torch.arange(4)))  # <-
