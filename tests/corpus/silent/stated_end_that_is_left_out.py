"""Responses continue after the token with which their model ends a text."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Stated(Learner):
    @staticmethod
    def misses_end(config: PolicyConfig) -> int | None:
        return 2


@hf.dataflow
def program(prompts: Prompts, learner: Stated, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Stated, PolicyConfig(), pool=pool),  # <- HF909
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
