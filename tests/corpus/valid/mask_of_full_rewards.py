"""Records of the user's: all responses have the full length, so that the last column has the last token of each."""

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
def returns(scores: Scores, rollout: Rollout) -> Advantages:
    import torch

    rewards = torch.zeros_like(rollout.log_probs.tensor)
    rewards[:, -1] = scores.reward.tensor
    return Advantages(advantages=rewards.flip(1).cumsum(1).flip(1) * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Learner, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(rollout, returns(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Learner, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
