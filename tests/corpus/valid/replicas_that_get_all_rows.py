"""Every replica of a policy learns from the whole batch."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Bigrams, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Policy(Bigrams):
    @register(Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> float:
        loss = self.loss(prompts.ids.tensor)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


@hf.function
def first(losses: hf.PerRank[float]) -> LearnerMetrics:
    return LearnerMetrics(loss=losses[0])


@hf.dataflow
def program(prompts: Prompts, policy: Policy) -> LearnerMetrics:
    return first(policy.imitate(prompts))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(policy=hf.place(Policy, pool=pool)),
    dims={B: 8, P: 3},
    batches=prompts_of(8),
)
