"""Algorithms that learn from pairs of responses: DPO, online and from data, and reward modeling."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.rl.fields import Count
from hfdsl.rl.losses import DPO, BradleyTerry
from hfdsl.rl.training.algorithms.base import ActorRun, Options, ReferenceRun
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.workers.config import CriticConfig, ReferenceConfig


@dataclass(frozen=True, kw_only=True)
class OnlineDPOOptions(Options):
    """The options of online DPO."""

    updates: Count = 1
    """The number of updates in a step, each on an equal part of its pairs."""
    loss: DPO = DPO(0.1)
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class OfflineDPOOptions(Options):
    """The options of DPO."""

    loss: DPO = DPO(0.1)
    """The loss of the policy."""


@dataclass(frozen=True, kw_only=True)
class RewardModelingOptions(Options):
    """The options of reward modeling."""

    loss: BradleyTerry = BradleyTerry()
    """The loss of the reward model."""


@dataclass(frozen=True, kw_only=True)
class OnlineDPO(ReferenceRun):
    """Online DPO: the policy learns to prefer the better of two responses that it has just generated."""

    algorithm: str = "hfdsl.rl.dataflows.online_dpo:online_dpo"
    options: OnlineDPOOptions = OnlineDPOOptions()


@dataclass(frozen=True, kw_only=True)
class OfflineDPO(ActorRun):
    """DPO: the policy learns to prefer the better of two responses of the data, and generates none."""

    algorithm: str = "hfdsl.rl.dataflows.dpo:dpo"
    options: OfflineDPOOptions = OfflineDPOOptions()
    reference: ReferenceConfig
    """The frozen policy that the actor is held near."""


@dataclass(frozen=True, kw_only=True)
class RewardModeling(RunConfig):
    """Reward modeling: a model learns to give the better of two responses the higher score."""

    algorithm: str = "hfdsl.rl.dataflows.reward_modeling:reward_modeling"
    options: RewardModelingOptions = RewardModelingOptions()
    reward: CriticConfig
    """The model that learns."""
