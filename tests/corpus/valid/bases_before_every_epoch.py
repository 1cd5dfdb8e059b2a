"""The ratio of each epoch is to the policy before the first one."""

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
    Reward,
    Rollout,
    gains,
    prompts_of,
)


class Policy(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, advantages: Advantages) -> LearnerMetrics:
        import torch

        mask, gain = rollout.response_mask.tensor, advantages.advantages.tensor
        old = self.chosen(rollout.ids.tensor).detach()
        metrics = list[LearnerMetrics]()
        for _ in range(3):
            now = self.chosen(rollout.ids.tensor)
            ratio = (now - old).exp()
            losses = torch.maximum(-ratio * gain, -ratio.clamp(0.8, 1.2) * gain)
            metrics.append(self.descend((losses * mask).sum() / mask.sum()))
        return metrics[-1]


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
