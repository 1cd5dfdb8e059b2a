"""A policy gradient without a ratio learns once from each mini-batch."""

from dataclasses import dataclass
from typing import ClassVar

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    prompts_of,
)


@dataclass(frozen=True)
class Plain:
    """The policy gradient as it is."""

    uses_ratio: ClassVar[bool] = False


class Gradient(Learner):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def follow(self, rollout: Rollout, advantages: Advantages, *, loss: Plain) -> ActorMetrics:
        return self.update(rollout, advantages)


@hf.dataflow
def program(prompts: Prompts, learner: Gradient, reward: Reward) -> list[ActorMetrics]:
    rollout = learner.generate(prompts)
    gains = gained(reward.score(rollout), rollout)
    parts = list(zip(hf.minibatches(rollout, 2), hf.minibatches(gains, 2), strict=True))
    return [learner.follow(part, gain, loss=Plain()) for part, gain in parts]


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(learner=hf.place(Gradient, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
