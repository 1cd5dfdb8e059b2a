"""The engine samples a nucleus for an evaluation, and the policy itself what it learns from."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    prompts_of,
)


class Nucleus(Engine):
    @staticmethod
    def truncates(config: PolicyConfig) -> str | None:
        return "top_p = 0.8"


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Nucleus, reward: Reward) -> tuple[ActorMetrics, Scores]:
    rollout = learner.generate(prompts)
    metrics = learner.learn(rollout, gained(reward.score(rollout), rollout))
    hf.sync(learner, engine)
    return metrics, reward.score(engine.sample(prompts))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        engine=hf.place(Nucleus, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
