"""A response is scored a second time, for its own baseline."""

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


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    gained = above_baseline(reward.score(rollout), reward.score(rollout), rollout)  # <- HF344
    return learner.learn(rollout, gained)


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
