"""A policy of one replica has nobody to average its gradients with."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Bigrams, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Policy(Bigrams):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> LearnerMetrics:
        loss = self.loss(prompts.ids.tensor)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return LearnerMetrics(loss=loss.item())


@hf.dataflow
def program(prompts: Prompts, policy: Policy) -> LearnerMetrics:
    return policy.imitate(prompts)


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(policy=hf.place(Policy, pool=pool, mesh=hf.Mesh(tp=4))),
    dims={B: 8, P: 3},
    batches=prompts_of(8),
)
