"""A judge keeps the scores of prompts that it has seen, to compute none twice."""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.learners import Imitator, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Weights(hf.Batch):
    weight: f32[B]


class Judge(hf.Worker):
    def __init__(self) -> None:
        self.known = dict[str, float]()

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Weights:
        import torch

        for answer, row in zip(prompts.answer.objects, prompts.ids.tensor, strict=True):
            if answer not in self.known:
                self.known[answer] = float(row.sum())
        return Weights(weight=torch.tensor([self.known[answer] for answer in prompts.answer.objects]))


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
