"""A first rollout says how hard a question is, and its mean score weighs the advantages of a second one."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


@hf.function
def weighed(rollout: Rollout, gains: Advantages, difficulty: Scores) -> Advantages:
    weights = (1 - difficulty.reward.tensor)[:, None] * rollout.response_mask.tensor
    return Advantages(advantages=gains.advantages.tensor * weights)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward) -> ActorMetrics:
    tried, rollout = learner.generate(prompts), learner.generate(prompts)
    gains = gained(reward.score(rollout), rollout)
    return learner.learn(rollout, weighed(rollout, gains, reward.score(tried)))


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
