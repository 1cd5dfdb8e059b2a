"""Returns mix values with later returns by lam, and advantages are what they have above the values."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Critic,
    Estimates,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Values,
    prompts_of,
)


@hf.function
def estimates(rollout: Rollout, scores: Scores, values: Values, *, gamma: float = 1.0, lam: float = 0.95) -> Estimates:
    import torch

    mask = rollout.response_mask.tensor
    v, steps = values.values.tensor * mask, mask.shape[1]
    rewards = torch.zeros_like(v)
    rewards[torch.arange(len(v)), mask.sum(1) - 1] = scores.reward.tensor
    later = torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], dim=1)
    last, advantages = torch.zeros_like(v[:, 0]), torch.zeros_like(v)
    for t in range(steps - 1, -1, -1):
        last = rewards[:, t] + gamma * ((1 - lam) * later[:, t] + lam * last)
        advantages[:, t] = last - v[:, t]
    return Estimates(advantages=advantages * mask, returns=(advantages + v) * mask)


@hf.dataflow
def program(prompts: Prompts, actor: Learner, critic: Critic, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    estimated = estimates(rollout, reward.score(rollout), critic.values(rollout))
    critic.update(rollout, estimated)
    return actor.learn(rollout, estimated)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Learner, PolicyConfig(), pool=pool),
        critic=hf.place(Critic, PolicyConfig(), 1, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
