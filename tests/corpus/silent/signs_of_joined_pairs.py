"""The first half of the joined rows is taken for the rejected answers."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import LearnerMetrics
from tests.corpus.preferences import Pairs, Preferring, pairs_of
from tests.corpus.vocabulary import B, P, PolicyConfig, R


class Policy(Preferring):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, pairs: Pairs) -> LearnerMetrics:
        import torch

        ids = torch.cat([pairs.chosen_ids.tensor, pairs.rejected_ids.tensor])
        rejected, chosen = self.log_probs(ids).chunk(2)
        loss = torch.relu(1 - self.beta * (chosen - rejected)).mean()  # <- HF368
        return self.descend(loss)


@hf.dataflow
def program(pairs: Pairs, actor: Policy) -> LearnerMetrics:
    return actor.learn(pairs)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 8, P: 3, R: 4},
    batches=pairs_of(8),
)
