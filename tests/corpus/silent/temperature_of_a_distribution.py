"""The distribution of an update is not the one that was sampled."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import LearnerMetrics, Tempered
from tests.corpus.vocabulary import (
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    gains,
    prompts_of,
)


class Policy(Tempered):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, advantages: Advantages) -> LearnerMetrics:
        ids, gain, count = rollout.ids.tensor, advantages.advantages.tensor, self.config.response
        from torch.distributions import Categorical

        policy = Categorical(logits=self.model(ids).logits[:, -count - 1 : -1])
        now = policy.log_prob(ids[:, -count:])  # <- HF712
        return self.descend(-(now * gain).mean())


@hf.dataflow
def program(prompts: Prompts, actor: Policy, reward: Reward) -> LearnerMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(rollout, gains(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Policy, PolicyConfig(), 1.2, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
