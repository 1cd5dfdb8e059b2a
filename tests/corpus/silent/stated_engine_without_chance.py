"""Groups of responses to a prompt are compared, and the engine always says the likeliest token."""

import hfdsl as hf
from tests.corpus.advantages import centered
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Likely(Engine):
    """An engine that always says the likeliest token."""

    @staticmethod
    def repeats_responses(config: PolicyConfig) -> str:
        return "greedy"


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Likely, reward: Reward) -> ActorMetrics:
    hf.sync(learner, engine)
    rollout = engine.sample(hf.repeat(prompts, 4))  # <- HF725
    return learner.learn(rollout, centered(reward.score(rollout), rollout, group=4))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        engine=hf.place(Likely, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
