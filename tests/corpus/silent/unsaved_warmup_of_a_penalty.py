"""A judge counts its calls to warm up a penalty, and its state leaves out the count."""

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.learners import Imitator, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Weights(hf.Batch):
    weight: f32[B]


class Judge(hf.Worker):
    def __init__(self) -> None:
        self.scale, self.calls = 1.0, 0

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Weights:
        self.calls += 1  # <- HF783
        penalty = min(1.0, self.calls / 100) * prompts.ids.tensor.float().std(1)
        return Weights(weight=self.scale - penalty)

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


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
