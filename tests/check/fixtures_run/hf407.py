"""A dispatch function that makes one entry for two ranks."""

from typing import Any

import torch

import hfdsl as hf
from hfdsl import register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


# good: def one_entry_a_rank(group: Any, prompts: Prompts) -> Any:
# good:     return ([prompts] * group.world_size,), {}
def one_entry(group: Any, prompts: Prompts) -> Any:  # bad
    return ([prompts],), {}  # bad


class Critic(hf.Worker):
    # good: @register({"dispatch_fn": one_entry_a_rank, "collect_fn": lambda group, outputs: outputs[0]})
    @register({"dispatch_fn": one_entry, "collect_fn": lambda group, outputs: outputs[0]})  # bad
    def score(self, prompts: Prompts) -> Scores:  # <-
        return Scores(reward=torch.zeros(len(prompts)))


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Scores:
    return critic.score(prompts)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch("local") as running:
    running.step(Prompts(ids=torch.arange(4)))
