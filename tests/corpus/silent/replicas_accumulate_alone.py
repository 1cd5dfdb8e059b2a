"""Gradients of micro-batches are accumulated, and not those of the other replicas."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Bigrams, LearnerMetrics
from tests.corpus.vocabulary import B, P, Prompts, prompts_of


class Policy(Bigrams):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> LearnerMetrics:
        self.optimizer.zero_grad()
        parts = prompts.ids.tensor.split(1)
        losses = [self.loss(part) / len(parts) for part in parts]
        for loss in losses:
            loss.backward()
        self._step()
        return LearnerMetrics(loss=sum(loss.item() for loss in losses))

    def _step(self) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(self.table.parameters(), 1.0)
        self.optimizer.step()  # <- HF782


@hf.dataflow
def program(prompts: Prompts, policy: Policy) -> LearnerMetrics:
    return policy.imitate(prompts)


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(policy=hf.place(Policy, pool=pool, mesh=hf.Mesh(dp=2, tp=2))),
    dims={B: 8, P: 3},
    batches=prompts_of(8),
)
