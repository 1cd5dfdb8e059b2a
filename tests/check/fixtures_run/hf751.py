"""A step of a program whose stages step on their own."""

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


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, scores: Scores) -> Scores:
        return scores


@hf.dataflow
def program(prompts: Prompts, critic: Critic, judge: Judge) -> Scores:
    return judge.score(hf.queue(critic.score(prompts), lag=1, late="wait"))


deployment = hf.Deployment(
    critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")),
    judge=hf.place(Judge, pool=hf.ResourcePool([2], name="other")),
)
with program.compile(deployment).launch() as running:
    prompts = Prompts(ids=torch.arange(4))
    # good: results = list(running.stream([prompts]))
    running.step(prompts)  # <- bad
