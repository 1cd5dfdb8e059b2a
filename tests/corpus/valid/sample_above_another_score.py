"""Two rewards: one is the baseline of both together."""

import hfdsl as hf
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
def above_baseline(scores: Scores, baseline: Scores, rollout: Rollout) -> Advantages:
    gained = scores.reward.tensor - baseline.reward.tensor
    return Advantages(advantages=gained[:, None] * rollout.response_mask.tensor)


@hf.function
def together(first: Scores, second: Scores) -> Scores:
    return Scores(reward=first.reward.tensor + second.reward.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward, other: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    usual, scores = reward.score(rollout), other.score(rollout)
    return learner.learn(rollout, above_baseline(together(scores, usual), usual, rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
        other=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
