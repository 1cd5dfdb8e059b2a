"""The loss is the mean over the tokens of responses."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Descending, LearnerMetrics
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores, prompts_of


class Cut(Reward):
    """Leaves the last token out of what it says is a response."""

    @register(Dispatch.DP_PROTO)
    def cut(self, rollout: Rollout) -> Rollout:
        mask = rollout.response_mask.tensor.clone()
        mask[:, -1] = False
        return Rollout(ids=rollout.ids, response_mask=mask, log_probs=rollout.log_probs)


class Policy(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, scores: Scores) -> LearnerMetrics:
        now, mask = self.chosen(rollout.ids.tensor), rollout.response_mask.tensor
        ratio = (now - rollout.log_probs.tensor).exp()
        return self.descend(-(ratio * scores.reward.tensor[:, None] * mask).sum() / mask.sum())


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
