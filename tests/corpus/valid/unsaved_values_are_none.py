"""A judge saves the running mean of its scores, and fills its table when it needs it."""

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.learners import Imitator, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Weights(hf.Batch):
    weight: f32[B]


class Judge(hf.Worker):
    def __init__(self) -> None:
        self.mean, self.table = 0.0, list[float]()

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Weights:
        self.table = self.table or [2.0]
        score = self.table[0] * prompts.ids.tensor.float().mean(1)
        self.mean += 0.1 * (float(score.mean()) - self.mean)
        return Weights(weight=score - self.mean)

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


@hf.dataflow
def program(prompts: Prompts, judge: Judge, policy: Imitator) -> tuple[Weights, LearnerMetrics]:
    return judge.score(prompts), policy.imitate(prompts)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(judge=hf.place(Judge, pool=pool), policy=hf.place(Imitator, pool=pool)),
    dims={B: 8, P: 3},
    batches=prompts_of(8),
)
