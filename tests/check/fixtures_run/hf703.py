"""A body that clamps what it was given."""

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
    def shape(self, scores: Scores) -> Scores:  # <-
        # good: return Scores(reward=scores.reward.tensor.clamp(max=1.0))
        return Scores(reward=scores.reward.tensor.clamp_(max=1.0))  # bad

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Scores:
        return Scores(reward=prompts.ids.tensor.float())


@hf.dataflow
def program(prompts: Prompts, critic: Critic) -> Scores:
    return critic.shape(critic.score(prompts))


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch("local") as running:
    running.step(Prompts(ids=torch.arange(4)))
