"""A square falls up to its target, which is above 0."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import LearnerMetrics
from tests.corpus.preferences import Pairs, Preferring, pairs_of
from tests.corpus.vocabulary import B, P, PolicyConfig, R


class Policy(Preferring):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, pairs: Pairs) -> LearnerMetrics:

        chosen = self.log_probs(pairs.chosen_ids.tensor) - pairs.ref_chosen.tensor
        rejected = self.log_probs(pairs.rejected_ids.tensor) - pairs.ref_rejected.tensor
        return self.descend(((chosen - rejected - 1 / (2 * self.beta)) ** 2).mean())


@hf.dataflow
def program(pairs: Pairs, actor: Policy) -> LearnerMetrics:
    return actor.learn(pairs)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 8, P: 3, R: 4},
    batches=pairs_of(8),
)
