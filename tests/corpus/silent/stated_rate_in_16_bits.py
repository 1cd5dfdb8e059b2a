"""The parameters are bfloat16 to save memory, and the rate is that of RL."""

import hfdsl as hf
from hfdsl.protocols.role_facts import Learning
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Halved(Learner):
    @staticmethod
    def learning(config: PolicyConfig) -> Learning:
        return Learning(config.learning_rate, "bfloat16")


@hf.dataflow
def program(prompts: Prompts, learner: Halved, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Halved, PolicyConfig(learning_rate=1e-6), pool=pool),  # <- HF719
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
