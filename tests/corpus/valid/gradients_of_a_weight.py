"""The ratio is detached, as it weighs log-probs with a gradient."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Descending, LearnerMetrics
from tests.corpus.vocabulary import (
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    gains,
    prompts_of,
)


class Policy(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, ref: RefLogProbs, advantages: Advantages) -> LearnerMetrics:
        mask, gain = rollout.response_mask.tensor, advantages.advantages.tensor
        now = self.chosen(rollout.ids.tensor)
        gap = ref.ref_log_probs.tensor - now
        weight = (now.detach() - rollout.log_probs.tensor).exp().clamp(max=2.0)
        losses = 0.04 * (gap.exp() - gap - 1) - weight * gain * now
        return self.descend((losses * mask).sum() / mask.sum())


@hf.dataflow
def program(prompts: Prompts, actor: Policy, reference: Reference, reward: Reward) -> LearnerMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(rollout, reference.log_probs(rollout), gains(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Policy, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
