"""An evaluation whose workers would be others than those of the training."""

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


@hf.dataflow
def evaluation(prompts: Prompts, critic: Critic) -> Scores:
    return critic.score(prompts)


pool = hf.ResourcePool([2], name="pool")
deployment = hf.Deployment(critic=hf.place(Critic, pool=pool))
elsewhere = hf.Deployment(critic=hf.place(Critic, pool=pool))  # bad
with program.compile(deployment).launch("local") as running:
    # good: beside = running.also(evaluation.compile(deployment))
    beside = running.also(evaluation.compile(elsewhere))  # <- bad
    beside.step(Prompts(ids=torch.arange(4)))
