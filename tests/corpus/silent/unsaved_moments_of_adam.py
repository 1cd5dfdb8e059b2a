"""A policy saves its weights without the moments of Adam."""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.learners import Imitator, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Weights(hf.Batch):
    weight: f32[B]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Weights:
        return Weights(weight=prompts.ids.tensor.float().mean(1))


class Policy(Imitator):
    def __init__(self) -> None:
        import torch

        super().__init__()
        self.rule = torch.optim.Adam(self.table.parameters(), lr=0.1)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> LearnerMetrics:
        loss = self.loss(prompts.ids.tensor)
        self.rule.zero_grad()
        loss.backward()
        for parameter in self.table.parameters():
            parameter.grad = self.axis("dp").all_reduce(parameter.grad, "mean")
        self.rule.step()  # <- HF783
        return LearnerMetrics(loss=loss.item())


@hf.dataflow
def program(prompts: Prompts, judge: Judge, policy: Imitator) -> tuple[Weights, LearnerMetrics]:
    return judge.score(prompts), policy.imitate(prompts)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(judge=hf.place(Judge, pool=pool), policy=hf.place(Policy, pool=pool)),
    dims={B: 8, P: 3},
    batches=prompts_of(8),
)
