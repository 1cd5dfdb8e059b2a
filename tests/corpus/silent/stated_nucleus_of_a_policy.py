"""The policy samples a nucleus, as the engine's defaults have it, and learns from that."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Nucleus(Learner):
    @staticmethod
    def truncates(config: PolicyConfig) -> str | None:
        return "top_p = 0.8"


@hf.dataflow
def program(prompts: Prompts, learner: Nucleus, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Nucleus, PolicyConfig(), pool=pool),  # <- HF727
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
