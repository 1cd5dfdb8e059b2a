# mypy: disable-error-code="empty-body, arg-type"
"""A column of values [128, 1] is subtracted from the reference values [128].

Seen: https://github.com/PacktPublishing/Deep-Reinforcement-Learning-Hands-On/issues/74
Elsewhere: the advantage is [128, 128] without an error; training converges slowly, which a reader of the code noticed.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import B


class Experience(hf.Batch):
    states: f32[B]
    vals_ref: f32[B]


class Predicted(hf.Batch):
    value: f32[B, Literal[1]]


class Advantage(hf.Batch):
    adv: f32[B]


class Net(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def value(self, experience: Experience) -> Predicted: ...


@hf.function
def subtract(vals_ref: f32[B], value: f32[B]) -> Advantage: ...


@hf.dataflow
def a2c(experience: Experience, net: Net) -> Advantage:
    predicted = net.value(experience)
    return subtract(experience.vals_ref, predicted.value)  # <- HF215


experiment = hf.Experiment(a2c, hf.Deployment(net=hf.place(Net, pool=hf.ResourcePool([1]))), dims={B: 128})
