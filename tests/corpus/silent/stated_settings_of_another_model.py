"""The engine turns queries and keys by another base than the policy whose weights it loads."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Turning(Learner):
    def __init__(self, config: PolicyConfig, theta: float = 1e4) -> None:
        super().__init__(config)

    @staticmethod
    def copied_settings(config: PolicyConfig, theta: float = 1e4) -> dict[str, object]:
        return {"rope_theta": theta}


class Turned(Engine):
    def __init__(self, config: PolicyConfig, theta: float = 1e4) -> None:
        super().__init__(config)

    @staticmethod
    def copied_settings(config: PolicyConfig, theta: float = 1e4) -> dict[str, object]:
        return {"rope_theta": theta}


@hf.dataflow
def program(prompts: Prompts, learner: Turning, engine: Turned, reward: Reward) -> ActorMetrics:
    hf.sync(learner, engine)
    rollout = engine.sample(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Turning, PolicyConfig(), pool=pool),
        engine=hf.place(Turned, PolicyConfig(), 5e5, pool=pool),  # <- HF960
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
