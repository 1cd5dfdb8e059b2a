"""A body that trims the columns of its own ranks' rows, and returns fewer tokens than it was given."""

import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rollout(hf.Batch):
    log_probs: hf.f32[B, R]


class Values(hf.Batch):
    values: hf.f32[B, R]


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def values(self, rollout: Rollout) -> Values:  # <-
        # good: return Values(values=torch.zeros(rollout.log_probs.tensor.shape))
        return Values(values=torch.zeros(len(rollout), 3))  # bad


@hf.dataflow
def program(rollout: Rollout, critic: Critic) -> Values:
    return critic.values(rollout)


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")))
with program.compile(deployment).launch("local") as running:
    running.step(Rollout(log_probs=torch.zeros(4, 6)))
