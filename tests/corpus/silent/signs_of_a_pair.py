"""The reference's difference and the policy's both take the preferred answer from the rejected one."""

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

        chosen = self.log_probs(pairs.chosen_ids.tensor) - pairs.ref_chosen.tensor
        rejected = self.log_probs(pairs.rejected_ids.tensor) - pairs.ref_rejected.tensor
        losses = -F.logsigmoid(self.beta * (rejected - chosen))  # <- HF368
        return self.descend(losses.mean())


@hf.dataflow
def program(pairs: Pairs, actor: Policy) -> LearnerMetrics:
    return actor.learn(pairs)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 8, P: 3, R: 4},
    batches=pairs_of(8),
)
