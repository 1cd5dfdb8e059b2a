# mypy: disable-error-code="empty-body"
"""A rollout of 20 steps is split into the default 32 mini-batches.

Seen: https://github.com/ikostrikov/pytorch-a2c-ppo-acktr-gail/issues/72
Elsewhere: the mini-batch size becomes 0, and the sampler raises a ValueError at the first update, after the rollout.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B


class Steps(hf.Batch):
    observations: f32[B]
    actions: f32[B]
    advantages: f32[B]


class Agent(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, steps: Steps) -> ActorMetrics: ...


PROCESSES, STEPS, EPOCHS, MINI_BATCHES = 4, 5, 4, 32


@hf.dataflow
def ppo(steps: Steps, agent: Agent) -> list[ActorMetrics]:
    return [
        agent.update(part)
        for _ in range(EPOCHS)
        for part in hf.minibatches(steps, MINI_BATCHES)  # <- HF310
    ]


experiment = hf.Experiment(
    ppo, hf.Deployment(agent=hf.place(Agent, pool=hf.ResourcePool([1]))), dims={B: PROCESSES * STEPS}
)
