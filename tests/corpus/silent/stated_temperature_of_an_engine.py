"""The engine samples at another temperature than the one at which the policy learns."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Warm(Learner):
    def __init__(self, config: PolicyConfig, temperature: float = 1.0) -> None:
        super().__init__(config)

    @staticmethod
    def policy_temperature(config: PolicyConfig, temperature: float = 1.0) -> float:
        return temperature


class WarmEngine(Engine):
    def __init__(self, config: PolicyConfig, temperature: float = 1.0) -> None:
        super().__init__(config)

    @staticmethod
    def policy_temperature(config: PolicyConfig, temperature: float = 1.0) -> float:
        return temperature


@hf.dataflow
def program(prompts: Prompts, learner: Warm, engine: WarmEngine, reward: Reward) -> ActorMetrics:
    hf.sync(learner, engine)
    rollout = engine.sample(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Warm, PolicyConfig(), pool=pool),
        engine=hf.place(WarmEngine, PolicyConfig(), 0.7, pool=pool),  # <- HF712
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
