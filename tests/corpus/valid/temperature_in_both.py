"""Samples and log-probs are divided by one temperature."""

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
        logits = self.model(ids).logits[:, -count - 1 : -1] / self.temperature
        now = logits.log_softmax(-1).gather(-1, ids[:, -count:, None])[..., 0]
        return self.descend(-(now * gain).mean())


@hf.dataflow
def program(prompts: Prompts, actor: Policy, reward: Reward) -> LearnerMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(rollout, gains(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Policy, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
