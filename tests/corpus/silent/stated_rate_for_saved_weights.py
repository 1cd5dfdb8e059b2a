"""A rate for new weights overwrites those of a saved model."""

import hfdsl as hf
from hfdsl.protocols.role_facts import Learning
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Stated(Learner):
    @staticmethod
    def learning(config: PolicyConfig) -> Learning:
        return Learning(config.learning_rate, pretrained=True)


@hf.dataflow
def program(prompts: Prompts, learner: Stated, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Stated, PolicyConfig(), pool=pool),  # <- HF947
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
