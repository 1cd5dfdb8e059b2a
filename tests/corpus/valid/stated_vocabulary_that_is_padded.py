"""Models of one family pad their vocabulary to other numbers."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Worded(Learner):
    @staticmethod
    def vocabulary(config: PolicyConfig) -> int:
        return 151_936


class Larger(Reward):
    @staticmethod
    def vocabulary() -> int:
        return 152_064


@hf.dataflow
def program(prompts: Prompts, learner: Worded, reward: Larger) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Worded, PolicyConfig(), pool=pool),
        reward=hf.place(Larger, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
