"""A result from in front of a queue that drops groups."""

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
def program(prompts: Prompts, critic: Critic, judge: Judge) -> tuple[Scores, Scores]:
    scores = critic.score(prompts)
    # good: taken = hf.queue(scores, lag=1, late="wait")
    taken = hf.queue(scores, lag=1, late="drop")  # bad
    return judge.score(taken), scores


deployment = hf.Deployment(
    critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool")),
    judge=hf.place(Judge, pool=hf.ResourcePool([2], name="other")),
)
with program.compile(deployment, dims={B: 4}).launch() as running:  # <-
    results = list(running.stream([Prompts(ids=torch.arange(4))]))
