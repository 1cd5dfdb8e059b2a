"""The reward model has another tokenizer than the policy, and reads its token ids."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Worded(Learner):
    @staticmethod
    def vocabulary(config: PolicyConfig) -> int:
        return 151_936


class Judge(Reward):
    @staticmethod
    def vocabulary() -> int:
        return 32_000


@hf.dataflow
def program(prompts: Prompts, learner: Worded, reward: Judge) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Worded, PolicyConfig(), pool=pool),
        reward=hf.place(Judge, pool=pool),  # <- HF341
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
