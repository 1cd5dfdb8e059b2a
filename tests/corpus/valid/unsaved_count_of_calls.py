"""A judge counts its calls for a line in its log."""

from time import perf_counter

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.learners import Imitator, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Weights(hf.Batch):
    weight: f32[B]


class Judge(hf.Worker):
    def __init__(self) -> None:
        self.calls, self.seconds = 0, 0.0

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Weights:
        start = perf_counter()
        weight = prompts.ids.tensor.float().mean(1)
        self.calls += 1
        self.seconds += perf_counter() - start
        if self.calls % 100 == 0:
            print(f"{self.calls} calls took {self.seconds:.1f} s")  # what such a judge does
        return Weights(weight=weight)


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
