"""Gradients of micro-batches add up to those of the batch."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Bigrams, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Policy(Bigrams):
    def __init__(self) -> None:
        import torch

        super().__init__()
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> LearnerMetrics:
        self.optimizer.zero_grad()
        total = 0.0
        for part in prompts.ids.tensor.split(2):
            loss = self.loss(part) / 2
            loss.backward()
            total += loss.item()
        self.average()
        self.optimizer.step()
        self.schedule.step()
        return LearnerMetrics(loss=total)

    def average(self) -> None:
        for parameter in self.table.parameters():
            parameter.grad = self.axis("dp").all_reduce(parameter.grad, "mean")


@hf.dataflow
def program(prompts: Prompts, policy: Policy) -> LearnerMetrics:
    return policy.imitate(prompts)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(policy=hf.place(Policy, pool=pool)),
    dims={B: 8, P: 3},
    batches=prompts_of(8),
)
