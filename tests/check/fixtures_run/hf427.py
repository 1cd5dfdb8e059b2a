"""Rows go to ranks in turns, and come back rank by rank."""

from typing import Any

import torch

import hfdsl as hf
from hfdsl import register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


def in_turns(group: Any, prompts: Prompts) -> Any:
    ranks = range(group.world_size)
    return ([Prompts(ids=prompts.ids.tensor[rank :: group.world_size]) for rank in ranks],), {}


def joined(group: Any, outputs: list[Scores]) -> Scores:
    # good: return Scores(reward=torch.stack([output.reward.tensor for output in outputs], 1).flatten())
    return Scores(reward=torch.cat([output.reward.tensor for output in outputs]))  # bad


class Critic(hf.Worker):
    @register({"dispatch_fn": in_turns, "collect_fn": joined})
    def score(self, prompts: Prompts) -> Scores:  # <-
        return Scores(reward=prompts.ids.tensor.float())


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Scores:
    return critic.score(prompts)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch("local") as running:
    running.step(Prompts(ids=torch.arange(4)))
