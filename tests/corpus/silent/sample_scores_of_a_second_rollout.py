"""The policy samples twice; the scores of the second rollout become the advantages of the first."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward) -> ActorMetrics:
    first, second = learner.generate(prompts), learner.generate(prompts)
    scores = reward.score(second)
    gains = gained(scores, first)  # <- HF339
    return learner.learn(first, gains)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
