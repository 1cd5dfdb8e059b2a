"""A judge centers its scores by their running mean, which no checkpoint has."""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.learners import Imitator, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Weights(hf.Batch):
    weight: f32[B]


class Judge(hf.Worker):
    def __init__(self) -> None:
        self.mean = 0.0

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Weights:
        score = prompts.ids.tensor.float().mean(1)
        self.mean = 0.9 * self.mean + 0.1 * float(score.mean())  # <- HF783
        return Weights(weight=score - self.mean)


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
