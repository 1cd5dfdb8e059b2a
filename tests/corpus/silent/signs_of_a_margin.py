"""The log of a sigmoid is minimized, which is to be maximized."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import LearnerMetrics
from tests.corpus.preferences import Pairs, Preferring, pairs_of
from tests.corpus.vocabulary import B, P, PolicyConfig, R


class Policy(Preferring):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, pairs: Pairs) -> LearnerMetrics:
        import torch.nn.functional as F

        chosen, rejected = self.log_probs(pairs.chosen_ids.tensor), self.log_probs(pairs.rejected_ids.tensor)
        ratios = (chosen - rejected) - (pairs.ref_chosen.tensor - pairs.ref_rejected.tensor)
        loss = F.logsigmoid(self.beta * ratios).mean()  # <- HF368
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
