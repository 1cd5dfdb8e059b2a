# mypy: disable-error-code="empty-body, call-arg"
"""The learner's batch is assembled without the advantages that its loss reads.

Seen: https://github.com/ray-project/ray/issues/58042
Elsewhere: a KeyError inside the loss in the first training iteration, after all environment steps.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B


class Steps(hf.Batch):
    observations: f32[B]
    rewards: f32[B]


class TrainBatch(hf.Batch):
    observations: f32[B]
    rewards: f32[B]
    advantages: f32[B]


class EnvRunner(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def sample(self, starts: Steps) -> Steps: ...


class Learner(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, batch: TrainBatch) -> ActorMetrics: ...


@hf.dataflow
def ppo(starts: Steps, runner: EnvRunner, learner: Learner) -> ActorMetrics:
    steps = runner.sample(starts)
    batch = TrainBatch(observations=steps.observations, rewards=steps.rewards)  # <- HF204
    return learner.update(batch)


experiment = hf.Experiment(
    ppo,
    hf.Deployment(
        runner=hf.place(EnvRunner, pool=hf.ResourcePool([1], use_gpu=False)),
        learner=hf.place(Learner, pool=hf.ResourcePool([1])),
    ),
    dims={B: 1000},
)
