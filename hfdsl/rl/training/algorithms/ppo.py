"""PPO: a critic, and a KL penalty with a fixed or an adaptive weight."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.rl.fields import Count, NonNegative, Share
from hfdsl.rl.kl import AdaptiveKL, FixedKL
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.training.algorithms.base import CriticRun, Options


@dataclass(frozen=True, kw_only=True)
class AdaptivePPOOptions(Options):
    """The options of PPO whose penalty is a role."""

    epochs: Count = 2
    """The number of passes over the rows of a step."""
    mini_batches: Count = 2
    """The number of updates in an epoch, each on an equal part of its rows."""
    gamma: Share = 1.0
    """The discount of later rewards."""
    lam: Share = 0.95
    """The lambda of generalized advantage estimation: 0 trusts the critic alone, 1 the rewards alone."""
    loss: Clip = Clip(0.2)
    """The loss of the policy."""
    value_loss: ClippedValue = ClippedValue(0.2)
    """The loss of the critic."""


@dataclass(frozen=True, kw_only=True)
class PPOOptions(AdaptivePPOOptions):
    """The options of PPO."""

    kl: NonNegative = 0.05
    """The weight of the KL to the reference in the rewards."""


@dataclass(frozen=True, kw_only=True)
class PPO(CriticRun):
    """PPO: a critic, generalized advantages, and a penalty for leaving the reference."""

    algorithm: str = "hfdsl.rl.dataflows.ppo:ppo"
    options: PPOOptions = PPOOptions()


@dataclass(frozen=True, kw_only=True)
class KLPenaltyArguments(Options):
    """The penalty for leaving the reference, as a role."""

    control: AdaptiveKL | FixedKL
    """How strong the penalty is: fixed, or adapted to a target."""


@dataclass(frozen=True, kw_only=True)
class PPOAdaptiveKL(CriticRun):
    """PPO with an adaptive penalty, which keeps the KL of a response near a target."""

    algorithm: str = "hfdsl.rl.dataflows.ppo_adaptive_kl:ppo_adaptive_kl"
    options: AdaptivePPOOptions = AdaptivePPOOptions()
    penalty: KLPenaltyArguments
    """The penalty for leaving the reference."""
