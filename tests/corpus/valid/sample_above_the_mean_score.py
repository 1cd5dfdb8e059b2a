"""The baseline is a number that a function makes of all scores."""

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


@hf.function(rows=hf.Whole)
def mean(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor.mean().expand(len(scores)).clone())


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    scores = reward.score(rollout)
    return learner.learn(rollout, above_baseline(scores, mean(scores), rollout))


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
