"""A record for training gets the tokens of one rollout and the score of the other."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, Scored, prompts_of


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward) -> list[ActorMetrics]:
    first, second = learner.generate(prompts), learner.generate(prompts)
    scored = hf.merge(Scored, first, reward.score(second))  # <- HF339
    return [learner.learn(part, gained(part, part)) for part in hf.minibatches(scored, 2)]


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
