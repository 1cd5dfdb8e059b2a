# mypy: disable-error-code="empty-body"
"""The last mini-batch has one row, and its advantages are divided by their standard deviation.

Seen: https://github.com/DLR-RM/stable-baselines3/issues/325
Elsewhere: the deviation of one value is NaN, which propagates through the loss into the network without an error.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B


class Steps(hf.Batch):
    observations: f32[B]
    advantages: f32[B]


class Agent(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, steps: Steps) -> ActorMetrics: ...


@hf.function(rows=hf.Whole)
@hf.requires("B >= 2")
def normalize(steps: Steps) -> Steps: ...


@hf.dataflow
def last_mini_batch(rest: Steps, agent: Agent) -> ActorMetrics:
    return agent.update(normalize(rest))  # <- HF322


BUFFER, MINI_BATCH = 65, 64
experiment = hf.Experiment(
    last_mini_batch,
    hf.Deployment(agent=hf.place(Agent, pool=hf.ResourcePool([1]))),
    dims={B: BUFFER % MINI_BATCH},
)
