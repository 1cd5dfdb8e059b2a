"""A role that generates more tokens than the plan has for their dim."""

import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Rollout(hf.Batch):
    log_probs: hf.f32[B, R]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:  # <-
        # good: return Rollout(log_probs=torch.zeros(len(prompts), 6))
        return Rollout(log_probs=torch.zeros(len(prompts), 8))  # bad


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


deployment = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment, dims={R: 6}).launch("local") as running:
    running.step(Prompts(ids=torch.arange(4)))
