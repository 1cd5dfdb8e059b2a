"""Gradients are dropped parameter by parameter."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Bigrams, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Policy(Bigrams):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> LearnerMetrics:
        for parameter in self.table.parameters():
            parameter.grad = None
        loss = self.loss(prompts.ids.tensor)
        loss.backward()
        self.average()
        self.optimizer.step()
        return LearnerMetrics(loss=loss.item())

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
