"""A function that takes the step for several roles leaves out the other replicas."""

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Bigrams, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


def take_step(optimizer: Any, loss: Any) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- HF782
    return float(loss.item())


class Policy(Bigrams):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> LearnerMetrics:
        return LearnerMetrics(loss=take_step(self.optimizer, self.loss(prompts.ids.tensor)))


@hf.dataflow
def program(prompts: Prompts, policy: Policy) -> LearnerMetrics:
    return policy.imitate(prompts)


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(policy=hf.place(Policy, pool=pool)),
    dims={B: 8, P: 3},
    batches=prompts_of(8),
)
