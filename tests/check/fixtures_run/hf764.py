"""A loader that waits for longer than the stream."""

import time
from collections.abc import Iterator

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


def loader() -> Iterator[Prompts]:
    time.sleep(0.3)
    yield Prompts(ids=torch.arange(4))


with program.compile(deployment).launch() as running:
    # good: results = list(running.stream(loader(), timeout=60))
    results = list(running.stream(loader(), timeout=0.05))  # <- bad
