"""A critic and its estimates, which the programs on what critics and policies learn share."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.rl.advantages import gae
from tests.corpus.advantages import Experience
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import (
    B,
    Critic,
    CriticMetrics,
    Estimates,
    PolicyConfig,
    R,
    Reward,
    Rollout,
    Scores,
    Sequences,
    Values,
)


class Rewards(hf.Batch):
    rewards: f32[B, R]


class Targets(Sequences):
    """What a critic learns: its old values, and the returns."""

    values: f32[B, R]
    returns: f32[B, R]


class Both(Experience, Targets):
    """What a policy and its critic learn."""


class Baseline(Critic):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("critic")
    def values(self, sequences: Sequences) -> Values:
        return super().values(sequences)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("critic")
    def learn(self, targets: Targets) -> CriticMetrics:
        return super().update(targets, Estimates(advantages=targets.returns, returns=targets.returns))


@hf.function
def at_the_end(scores: Scores, rollout: Rollout) -> Rewards:
    """The score of a response as the reward of its last token."""
    from hfdsl.rl.rewards import token_rewards

    return Rewards(rewards=token_rewards(scores.reward.tensor, rollout.response_mask.tensor))


@hf.function
def doubled(rewards: Rewards) -> Rewards:
    """Other rewards."""
    return Rewards(rewards=rewards.rewards.tensor * 2)


@hf.function
def estimated(
    rollout: Rollout, rewards: Rewards, values: Values, *, discount: float = 1.0, decay: float = 0.95
) -> Estimates:
    """Generalized advantage estimates."""
    mask = rollout.response_mask.tensor
    advantages, returns = gae(rewards.rewards.tensor, values.values.tensor, mask, discount, decay)
    return Estimates(advantages=advantages, returns=returns)


def places() -> hf.Deployment:
    """A policy, its critic and its reward on one pool."""
    pool, config = hf.ResourcePool([2]), PolicyConfig()
    return hf.Deployment(
        policy=hf.place(Policy, config, pool=pool),
        critic=hf.place(Baseline, config, pool=pool),
        reward=hf.place(Reward, pool=pool),
    )
