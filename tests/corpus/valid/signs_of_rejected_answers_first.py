"""The rejected answers are the first of the joined rows, and of a difference under a softplus."""

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
        import torch.nn.functional as F

        ids = torch.cat([pairs.rejected_ids.tensor, pairs.chosen_ids.tensor])
        rejected, chosen = self.log_probs(ids).chunk(2)
        return self.descend(F.softplus(self.beta * (rejected - chosen)).mean())


@hf.dataflow
def program(pairs: Pairs, actor: Policy) -> LearnerMetrics:
    return actor.learn(pairs)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 8, P: 3, R: 4},
    batches=pairs_of(8),
)
