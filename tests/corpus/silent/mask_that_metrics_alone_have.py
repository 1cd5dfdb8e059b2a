"""The mask of a response reaches a metric, and the loss has its padding."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Descending, LearnerMetrics
from tests.corpus.silent.mask_left_out_of_a_loss import Cut
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Rollout, Scores, prompts_of


class Policy(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, scores: Scores) -> LearnerMetrics:
        mask = rollout.response_mask.tensor
        now = self.chosen(rollout.ids.tensor)
        ratio = (now - rollout.log_probs.tensor).exp()
        self.mean_ratio = (ratio.detach() * mask).sum() / mask.sum()
        return self.descend(-(ratio * scores.reward.tensor[:, None]).mean())  # <- HF355


@hf.dataflow
def program(prompts: Prompts, actor: Policy, reward: Cut) -> LearnerMetrics:
    rollout = reward.cut(actor.generate(prompts))
    return actor.learn(rollout, reward.score(rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Policy, PolicyConfig(), pool=pool),
        reward=hf.place(Cut, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
