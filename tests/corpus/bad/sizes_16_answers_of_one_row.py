# mypy: disable-error-code="empty-body"
"""The trainer takes batches of one row, but a batch must contain whole groups of 16 answers.

Seen: https://github.com/wyf3/llm_related/issues/13
Elsewhere: a ValueError in the trainer's constructor; the reader asks whether the script or the machine is wrong.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, R, Rollout

NUM_GENERATIONS = 16


class GrpoTrainer(hf.Worker):
    def __init__(self, train_batch_size: int) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B <= train_batch_size")
    def train(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...


@hf.function(rows=hf.Grouped(NUM_GENERATIONS))
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(rollout: Rollout, trainer: GrpoTrainer) -> ActorMetrics:
    return trainer.train(rollout, advantages_of(rollout))  # <- HF318


experiment = hf.Experiment(
    grpo,
    hf.Deployment(trainer=hf.place(GrpoTrainer, train_batch_size=1, pool=hf.ResourcePool([1]))),
    dims={B: 16, P: 256, R: 200},
)
