# mypy: disable-error-code="empty-body"
"""Each GPU normalizes the advantages of its own mini-batch, and the gradients are averaged afterwards.

Seen: https://github.com/HorizonRobotics/alf/pull/1642
Elsewhere: silent: results change with the number of GPUs.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B


class Steps(hf.Batch):
    observations: f32[B]
    advantages: f32[B]


class DdpLearner(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Whole)
    def normalized(self, steps: Steps) -> Steps: ...

    @register(Dispatch.DP_PROTO)
    def update(self, steps: Steps) -> ActorMetrics: ...


@hf.dataflow
def ppo(steps: Steps, learner: DdpLearner) -> ActorMetrics:
    return learner.update(learner.normalized(steps))  # <- HF421


experiment = hf.Experiment(ppo, hf.Deployment(learner=hf.place(DdpLearner, pool=hf.ResourcePool([4]))), dims={B: 4096})
