"""Samples of a frozen teacher are trained on with the policy's ratio instead of being imitated.

Seen: https://github.com/PrimeIntellect-ai/prime-rl/pull/2746
Elsewhere: the configuration allows samples of frozen models only for a cross-entropy.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scored,
    gains,
)


class Teacher(Actor):
    @register(Dispatch.DP_PROTO)
    @hf.reads("teacher")
    def answer(self, prompts: Prompts) -> Rollout:
        return self.generate(prompts)


@hf.dataflow
def step(prompts: Prompts, learner: Learner, teacher: Teacher, reward: Reward) -> ActorMetrics:
    rollout = teacher.answer(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    return learner.learn(batch, gains(batch, batch))  # <- HF335


train, serve, config = hf.ResourcePool([4]), hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train),
    teacher=hf.place(Teacher, config, pool=serve),
    reward=hf.place(Reward, pool=serve),
)
experiment = hf.Experiment(step, places, dims={B: 64, P: 512, R: 4})
