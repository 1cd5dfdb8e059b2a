"""The engine is configured for responses of six tokens, and the batch is sized for four."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Sized(Engine):
    @staticmethod
    def result_sizes(config: PolicyConfig) -> dict[str, dict[str, int]]:
        return {"sample": {"R": config.response}}


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Sized, reward: Reward) -> ActorMetrics:
    hf.sync(learner, engine)
    rollout = engine.sample(prompts)
    return learner.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        engine=hf.place(Sized, PolicyConfig(response=6), pool=pool),  # <- HF711
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
